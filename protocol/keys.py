"""Ed25519 keys (RFC 8032): who signed a bundle or a message."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.errors import KeyFileError
from protocol.files import read_limited, write_new

PRIVATE_PREFIX = "fedtailor-ed25519-private:"
PUBLIC_PREFIX = "fedtailor-ed25519-public:"
KEY_BYTES = 32
SIGNATURE_BYTES = 64
KEY_FILE_BYTES = 1024
FIELD_PRIME = 2**255 - 19
# The y coordinates of the eight points of small order (RFC 7748 and 8032 arithmetic): signatures under them prove nothing.
SMALL_ORDER_Y = frozenset(
    {
        0,
        1,
        FIELD_PRIME - 1,
        2707385501144840649318225287225658788936804267575313519463743609750303402022,
        55188659117513257062467267217118295137698188065244968500265048394206261417927,
    }
)


@dataclass(frozen=True)
class PublicKey:
    """A key that verifies.

    Attributes:
        raw: The 32 bytes of RFC 8032.
    """

    raw: bytes
    _key: Ed25519PublicKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse bytes that are no usable key."""
        if len(self.raw) != KEY_BYTES:
            raise KeyFileError("a public key has the wrong length", expected=f"{KEY_BYTES} bytes", got=str(len(self.raw)))
        y = int.from_bytes(self.raw, "little") & (2**255 - 1)
        if y >= FIELD_PRIME or y in SMALL_ORDER_Y:
            raise KeyFileError("a public key is weak or not canonical", hint="make a new pair: fedtailor keys new NAME")
        object.__setattr__(self, "_key", Ed25519PublicKey.from_public_bytes(self.raw))

    @classmethod
    def from_hex(cls, text: str) -> PublicKey:
        """Return the key that 64 hex digits write."""
        try:
            return cls(bytes.fromhex(text))
        except ValueError as error:
            raise KeyFileError("a public key is not in hexadecimal", expected="64 digits", got=repr(text[:70])) from error

    @classmethod
    def open(cls, path: Path) -> PublicKey:
        """Read a public key file.

        Raises:
            KeyFileError: Missing or malformed, or it holds a private key.
        """
        return cls(_read_key_file(path, PUBLIC_PREFIX))

    @property
    def hex(self) -> str:
        """Return the key as 64 hex digits."""
        return self.raw.hex()

    @property
    def fingerprint(self) -> str:
        """Return 16 hex digits to compare by eye."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    def save(self, path: Path) -> None:
        """Write the key file."""
        _write_key_file(path, PUBLIC_PREFIX + self.hex, 0o644)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Tell whether the signature is this key's over exactly these bytes."""
        if len(signature) != SIGNATURE_BYTES:
            return False
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True


class PrivateKey:
    """A key that signs."""

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            raise KeyFileError("a private key has the wrong length", expected=f"{KEY_BYTES} bytes", got=str(len(raw)))
        self._key = Ed25519PrivateKey.from_private_bytes(raw)

    @classmethod
    def generate(cls) -> PrivateKey:
        """Return a new key from the system's random source."""
        return cls(os.urandom(KEY_BYTES))

    @classmethod
    def open(cls, path: Path) -> PrivateKey:
        """Read a private key file.

        Raises:
            KeyFileError: Missing or malformed, or others can read it.
        """
        raw = _read_key_file(path, PRIVATE_PREFIX)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise KeyFileError(f"{path} can be read by others", expected="permissions 600", hint=f"chmod 600 {path}")
        return cls(raw)

    @property
    def public(self) -> PublicKey:
        """Return the key that verifies."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def save(self, path: Path) -> None:
        """Write the key file, readable by its owner alone.

        Raises:
            KeyFileError: The file exists.
        """
        _write_key_file(path, PRIVATE_PREFIX + self._key.private_bytes_raw().hex(), 0o600)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of the signature."""
        return self._key.sign(message)


def is_public_key(text: str) -> bool:
    """Tell whether a text writes a usable public key in hexadecimal."""
    try:
        PublicKey.from_hex(text)
    except KeyFileError:
        return False
    return True


def _read_key_file(path: Path, prefix: str) -> bytes:
    """Return the 32 bytes in a key file of one line."""
    content = read_limited(path, KEY_FILE_BYTES, KeyFileError)
    try:
        text = content.decode("ascii").strip()
        if not text.startswith(prefix):
            raise ValueError("another prefix")
        raw = bytes.fromhex(text.removeprefix(prefix))
    except ValueError as error:
        kind = prefix.rstrip(":")
        raise KeyFileError(
            f"{path} is no such key", expected=f"one line {kind}:<64 hex digits>", hint="did you mix up .key and .pub?"
        ) from error
    if len(raw) != KEY_BYTES:
        raise KeyFileError(f"{path} holds a key of the wrong length", expected=f"{KEY_BYTES} bytes", got=str(len(raw)))
    return raw


def _write_key_file(path: Path, line: str, mode: int) -> None:
    """Write a key file of one line, never over another file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not write_new(path, (line + "\n").encode(), mode):
        raise KeyFileError(f"{path} exists and is not overwritten", hint="choose another name, or remove it yourself")
