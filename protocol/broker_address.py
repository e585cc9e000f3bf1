"""Broker URLs."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from protocol.errors import InputError

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker is and how to log in."""

    host: str
    port: int
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        """Return the address without user and password."""
        return f"{'mqtts' if self.tls else 'mqtt'}://{self.host}:{self.port}"


def parse_broker(url: str) -> BrokerAddress:
    """Return the address in ``mqtt://[user:password@]host[:port]`` or ``mqtts://...``.

    Raises:
        InputError: It is no such URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InputError("the broker's URL cannot be read", expected="mqtt://host:port", hint=str(error)) from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.path not in ("", "/") or port == 0:
        got = f"{parts.scheme}://{parts.hostname}{parts.path}"  # never the password
        raise InputError("the broker's URL cannot be read", expected="mqtt://host:port or mqtts://host:port", got=got)
    username, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    return BrokerAddress(parts.hostname, port or DEFAULT_PORTS[parts.scheme], parts.scheme == "mqtts", username, password)
