"""Where a broker is, and how to log in: its URL, and the files that TLS needs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from protocol.errors import InputError

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
SCHEMES = {(False, False): "mqtt", (True, False): "mqtts", (False, True): "ws", (True, True): "wss"}  # (TLS, WebSockets)
DEFAULT_PATH = "/mqtt"
PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*")  # what may stand in the first line of an HTTP request
EXPECTED = "mqtt://, mqtts://, ws:// or wss://, then host:port"


@dataclass(frozen=True)
class TlsFiles:
    """Files in PEM that TLS needs; each may be missing.

    Attributes:
        authority: Certificates to believe; the system's when None.
        certificate: This client's certificate, and those between it and its authority.
        key: The private key that belongs to it.
    """

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker is and how to log in; ``path`` is that of a WebSocket, None for plain MQTT."""

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str | None = None
    files: TlsFiles = field(default_factory=TlsFiles)

    def __post_init__(self) -> None:
        """Refuse files that nothing would look at: who names them believes to be protected."""
        if not self.tls and self.files != TlsFiles():
            raise InputError(f"{self} does not use TLS", expected="mqtts:// or wss:// with certificates")

    def __str__(self) -> str:
        """Return the address without user and password."""
        return f"{self.scheme}://{self._place}"

    @property
    def scheme(self) -> str:
        """Return the beginning of the URL."""
        return SCHEMES[self.tls, self.path is not None]

    @property
    def url(self) -> str:
        """Return the whole URL, with user and password: not to be shown."""
        login = "" if self.username is None else quote(self.username, safe="")
        login += "" if self.password is None else f":{quote(self.password, safe='')}"
        return f"{self.scheme}://{login}{'@' if login else ''}{self._place}"

    @property
    def _place(self) -> str:
        """Return host, port and path."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}{self.path or ''}"


def parse_broker(url: str, files: TlsFiles | None = None) -> BrokerAddress:
    """Return the address in ``mqtt://[user:password@]host[:port]``, ``mqtts://...``, or ``ws://...[/path]``, ``wss://...``.

    Raises:
        InputError: It is no such URL, or has files for TLS and does not use it.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError("the broker's URL cannot be read", expected=EXPECTED, hint=str(error)) from error
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    websocket = parts.scheme in ("ws", "wss")
    fits = bool(PATH.fullmatch(target or DEFAULT_PATH)) if websocket else target in ("", "/")
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or not fits or parts.fragment or port == 0:
        got = f"{parts.scheme}://{parts.hostname}{parts.path}"  # never the password
        raise InputError("the broker's URL cannot be read", expected=EXPECTED, got=got)
    username, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    path = (target or DEFAULT_PATH) if websocket else None
    tls = parts.scheme in ("mqtts", "wss")
    return BrokerAddress(parts.hostname, port or DEFAULT_PORTS[parts.scheme], tls, username, password, path, files or TlsFiles())
