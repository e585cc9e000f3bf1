"""Content that can be sent, under the name that it has by itself: its SHA-256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InputError
from protocol.files import require_plain_file
from protocol.transfer_layout import DIGEST_BYTES, GROUP_BYTES, MAXIMUM_TRANSFER_BYTES, group_bytes, group_count
from protocol.transfer_messages import Media, Offer, no_digests


class Source(Protocol):
    """Content of a known size and digest."""

    @property
    def transfer(self) -> str:
        """Return the SHA-256 of the whole, in hexadecimal."""

    @property
    def size(self) -> int:
        """Return the size in bytes."""

    @property
    def groups(self) -> NDArray[np.uint8]:
        """Return the digests of the groups, (G, 32); none when there is one group."""

    def read(self, offset: int, length: int) -> bytes:
        """Return a piece.

        Raises:
            InputError: The content is not what it was.
        """


class BytesSource:
    """Content in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = _check_size(len(data))
        pieces = (data[start : start + GROUP_BYTES] for start in range(0, len(data), GROUP_BYTES))
        self.transfer, self.groups = _digests(pieces, len(data))

    def read(self, offset: int, length: int) -> bytes:
        """Return a piece."""
        return self._data[offset : offset + length]


class FileSource:
    """Content in a file, which must not change while it is served; at most one group is in memory."""

    def __init__(self, path: Path) -> None:
        require_plain_file(path)
        self._path = path
        self._facts = _facts(path)
        self.size = _check_size(path.stat().st_size)
        with path.open("rb") as file:
            self.transfer, self.groups = _digests(iter(lambda: file.read(GROUP_BYTES), b""), self.size)

    def read(self, offset: int, length: int) -> bytes:
        """Return a piece.

        Raises:
            InputError: The file has changed, or is gone.
        """
        try:
            if _facts(self._path) != self._facts:
                raise InputError(f"{self._path} has changed while it was served", hint="serve the new file under its own name")
            with self._path.open("rb") as file:
                return os.pread(file.fileno(), length, offset)
        except OSError as error:
            raise InputError(f"{self._path} cannot be read", got=str(error.strerror)) from error


def offer_of(source: Source, media: Media, *, chunk_bytes: int, round_number: int | None, expires: float) -> Offer:
    """Return the offer of some content."""
    return Offer(source.transfer, source.size, chunk_bytes, media, round_number, expires, source.groups)


def _check_size(size: int) -> int:
    """Return a size that a transfer can have."""
    if not 1 <= size <= MAXIMUM_TRANSFER_BYTES:
        raise InputError("this content cannot be sent", expected=f"1 to {MAXIMUM_TRANSFER_BYTES} bytes", got=f"{size} bytes")
    return size


def _facts(path: Path) -> tuple[int, int, int]:
    """Return what tells one state of a file from another."""
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def _digests(pieces: Iterator[bytes], size: int) -> tuple[str, NDArray[np.uint8]]:
    """Return the digest of the whole and those of its groups, from pieces of ``GROUP_BYTES``."""
    whole, per_group = hashlib.sha256(), group_bytes(size) // GROUP_BYTES
    hashes = [hashlib.sha256() for _ in range(group_count(size))]
    for place, piece in enumerate(pieces):
        whole.update(piece)
        hashes[place // per_group].update(piece)
    if len(hashes) == 1:
        return whole.hexdigest(), no_digests()
    return whole.hexdigest(), np.frombuffer(b"".join(part.digest() for part in hashes), np.uint8).reshape(-1, DIGEST_BYTES)
