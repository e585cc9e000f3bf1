"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass
class Authority:
    """A certificate authority with its files in a folder."""

    folder: Path
    name: str = "authority"
    days: int = 2  # until its certificate is over; negative for one that is over

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        certificate = self._sign(self.subject, self.key.public_key(), [x509.BasicConstraints(ca=True, path_length=None)], self.days)
        self.certificate = self._write(certificate)

    def issue(self, name: str, host: str = "127.0.0.1", days: int = 2) -> tuple[Path, Path]:
        """Return the files of a certificate for a host (an IP address or a name) and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        path = self._write(self._sign(subject, key.public_key(), [x509.SubjectAlternativeName([alternative])], days), name)
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key_path = self.folder / f"{name}.key"
        key_path.touch(mode=0o600)
        key_path.write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        return path, key_path

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, extensions: list[x509.ExtensionType], days: int
    ) -> x509.Certificate:
        now = datetime.now(timezone.utc)
        builder = x509.CertificateBuilder(self.subject, subject, key, x509.random_serial_number(), now - 10 * DAY, now + days * DAY)
        for extension in extensions:
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, certificate: x509.Certificate, name: str | None = None) -> Path:
        path = self.folder / f"{name or self.name}.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path
