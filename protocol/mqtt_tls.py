"""TLS to a broker: which certificates are believed and shown, and what a failure means, in one sentence."""

from __future__ import annotations

import ssl
import stat
from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509

from protocol.broker_address import BrokerAddress, TlsFiles
from protocol.errors import InputError, KeyFileError
from protocol.files import read_limited

PEM_BYTES = 1024 * 1024
EXPIRED, NOT_YET_VALID, WRONG_HOST, WRONG_ADDRESS = 10, 9, 62, 64  # OpenSSL's verify codes
ALERT = "ALERT"  # stands in the error of a TLS session that the other side ended


class _Socket(ssl.SSLSocket):
    """A socket that is closed when its handshake fails; paho would leave it open."""

    def do_handshake(self, block: bool = False) -> None:
        """Shake hands."""
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what TLS connections are made with: TLS 1.2 or later, the broker's certificate and name verified.

    Raises:
        InputError: A file is missing, is not what it should be, or holds only certificates whose time is over.
        KeyFileError: The private key can be read by others, or cannot be used.
    """
    context = ssl.create_default_context(cadata=None if files.authority is None else _authorities(files.authority))
    context.sslsocket_class = _Socket
    if files.certificate is not None and files.key is not None:
        _check_key(files.key)
        _certificates(files.certificate)
        try:
            # An empty password: without one, OpenSSL would ask for it at the terminal.
            context.load_cert_chain(files.certificate, files.key, password="")
        except (ssl.SSLError, ValueError) as error:
            hint = "is it in PEM, without a password, and does it belong to the certificate?"
            raise KeyFileError(f"{files.key} is not the key of {files.certificate}", hint=hint) from error
    elif files.certificate is not None or files.key is not None:
        raise InputError("a client certificate and its key go together", expected="both files, or neither")
    return context


def explain(error: BaseException, address: BrokerAddress) -> tuple[str, str] | None:
    """Return what is wrong with the TLS of a broker and what to do about it; None when it is not about TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (EXPIRED, NOT_YET_VALID):
            return f"its certificate is not valid now ({error.verify_message})", "renew it, or set this machine's clock"
        if error.verify_code in (WRONG_HOST, WRONG_ADDRESS):
            return f"its certificate is not for {address.host}", "use the name that stands in the certificate"
        return f"its certificate is not believed ({error.verify_message})", "pass the certificate of its authority with --ca"
    if isinstance(error, ssl.SSLError):
        return f"no TLS there ({error.reason})", "is it mqtt:// or ws:// rather than mqtts:// or wss://?"
    return None


def explain_alert(text: str) -> tuple[str, str] | None:
    """Return what a broker means that ended TLS after the handshake: it looks at a client's certificate only then."""
    if ALERT not in text:
        return None
    words = text.partition(ALERT)[2].strip("_ ").partition("]")[0].replace("_", " ").lower()
    return f"it refuses this client's certificate ({words})", "pass one that it believes with --certificate and --certificate-key"


def _authorities(path: Path) -> str:
    """Return the certificates of a file, of which one at least is valid now."""
    certificates = _certificates(path)
    now = datetime.now(timezone.utc)
    if all(each.not_valid_after_utc < now for each in certificates):
        last = max(each.not_valid_after_utc for each in certificates)
        raise InputError(f"{path} holds only certificates whose time is over", got=f"{last:%Y-%m-%d}", hint="get the broker's new one")
    return path.read_text("ascii", errors="replace")


def _certificates(path: Path) -> list[x509.Certificate]:
    """Return the certificates in a file."""
    content = read_limited(path, PEM_BYTES, InputError)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise InputError(f"{path} holds no certificate", expected="PEM: -----BEGIN CERTIFICATE-----") from error


def _check_key(path: Path) -> None:
    """Refuse a private key that is missing or not private."""
    read_limited(path, PEM_BYTES, KeyFileError)
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise KeyFileError(f"{path} can be read by others", expected="permissions 600", hint=f"chmod 600 {path}")
