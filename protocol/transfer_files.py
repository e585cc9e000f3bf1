"""Where the pieces of a transfer are put together: on disk, to be resumed after a restart, or in memory when they are few.

On disk a transfer is two files, ``<sha256>.part`` of the full size and ``<sha256>.json``, which says which groups are in it,
and is written after the groups themselves are durable. What it says is believed only after their digests were computed
again. At the end the part takes its place as ``<sha256>``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.errors import InputError
from protocol.files import read_limited, sync_folder, write_atomically
from protocol.schema import SchemaError, decode, parse_json, to_json
from protocol.transfer_layout import group_bytes, group_count
from protocol.transfer_messages import Offer

STATE_BYTES = 4096
READ_BYTES = 256 * 1024


class ContentStore(Protocol):
    """Content that grows."""

    @property
    def stored(self) -> set[int]:
        """Return the groups that were there, verified, when the store was opened."""

    def write(self, offset: int, data: bytes) -> None:
        """Put a piece at its place."""

    def verify(self, group: int) -> bool:
        """Tell whether a group has the digest that the offer states; from then on it outlives a restart, if anything does."""

    def finish(self) -> bytes | Path | None:
        """Return the whole, or None when it does not have the digest that is its name."""

    def close(self) -> None:
        """Keep what is there for later."""


def group_digest(offer: Offer, group: int) -> bytes:
    """Return the digest that a group must have."""
    return bytes(offer.groups[group]) if len(offer.groups) else bytes.fromhex(offer.transfer)


class MemoryStore:
    """A store for small content, gone with its process."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._data = bytearray(offer.size)
        self.stored: set[int] = set()

    def write(self, offset: int, data: bytes) -> None:
        """Put a piece at its place."""
        self._data[offset : offset + len(data)] = data

    def verify(self, group: int) -> bool:
        """Tell whether a group is right."""
        size = group_bytes(self._offer.size)
        return hashlib.sha256(self._data[group * size : (group + 1) * size]).digest() == group_digest(self._offer, group)

    def finish(self) -> bytes | None:
        """Return the whole if it is right."""
        return bytes(self._data) if hashlib.sha256(self._data).hexdigest() == self._offer.transfer else None

    def close(self) -> None:
        """Forget the content."""
        self._data = bytearray()


@dataclass(frozen=True)
class _State:
    """What the small file says.

    Attributes:
        size: Size of the whole in bytes.
        expires: Seconds since 1970 after which nobody asks for the rest.
        groups: The groups that are in the part.
    """

    size: int
    expires: float
    groups: tuple[int, ...]


class FileStore:
    """A store that a restart does not empty.

    Args:
        folder: Where the content is kept; made when absent.
        offer: What is received.

    Raises:
        OSError: No room, or the disk fails; later calls may raise it too.
    """

    def __init__(self, folder: Path, offer: Offer) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._offer = offer
        self._whole = folder / offer.transfer
        self._part = folder / f"{offer.transfer}.part"
        self._note = folder / f"{offer.transfer}.json"
        self.stored: set[int] = set()
        self._saved: set[int] = set()
        claimed = _claimed_groups(self._note, offer)
        self._handle = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(self._handle).st_size != offer.size:
                os.ftruncate(self._handle, offer.size)
            os.posix_fallocate(self._handle, 0, offer.size)
            self._saved = {group for group in claimed if self._is_right(group)}
            self.stored = set(self._saved)
        except BaseException:
            self.close()
            raise

    def write(self, offset: int, data: bytes) -> None:
        """Put a piece at its place."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._handle, view, offset)
            view, offset = view[written:], offset + written

    def verify(self, group: int) -> bool:
        """Tell whether a group is right, and note it durably if it is not the last."""
        if not self._is_right(group):
            return False
        self._saved.add(group)
        if len(self._saved) < group_count(self._offer.size):
            os.fsync(self._handle)
            write_atomically(self._note, to_json(_State(self._offer.size, self._offer.expires, tuple(sorted(self._saved)))), 0o600)
        return True

    def finish(self) -> Path | None:
        """Put the whole into its place if it is right; otherwise begin anew."""
        digest = hashlib.sha256()
        for offset in range(0, self._offer.size, READ_BYTES):
            digest.update(os.pread(self._handle, READ_BYTES, offset))
        if digest.hexdigest() != self._offer.transfer:
            self.close()
            remove_transfer(self._whole)
            return None
        os.fsync(self._handle)
        self._part.replace(self._whole)
        self._note.unlink(missing_ok=True)
        sync_folder(self._whole.parent)
        self.close()
        return self._whole

    def close(self) -> None:
        """Keep what is there for later."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def _is_right(self, group: int) -> bool:
        """Tell whether a group has its digest."""
        digest, size = hashlib.sha256(), group_bytes(self._offer.size)
        end = min((group + 1) * size, self._offer.size)
        for offset in range(group * size, end, READ_BYTES):
            digest.update(os.pread(self._handle, min(READ_BYTES, end - offset), offset))
        return digest.digest() == group_digest(self._offer, group)


def find_whole(folder: Path, transfer: str) -> Path | None:
    """Return content that is there already, after computing its digest again; damaged content is removed."""
    path = folder / transfer
    if not path.is_file() or path.is_symlink():
        return None
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    if digest.hexdigest() == transfer:
        return path
    path.unlink()
    return None


def remove_transfer(whole: Path) -> None:
    """Remove content or what there is of it."""
    for path in (whole, whole.with_name(f"{whole.name}.part"), whole.with_name(f"{whole.name}.json")):
        path.unlink(missing_ok=True)


def sweep(folder: Path, now: float) -> None:
    """Remove unfinished content that nobody will complete: expired, or without a readable note. None of it may be open."""
    for part in folder.glob("*.part"):
        state = _read_state(part.with_suffix(".json"))
        if state is None or state.expires < now:
            remove_transfer(part.with_suffix(""))


def stored_bytes(folder: Path) -> int:
    """Return how many bytes a folder holds, unfinished content at its full size."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def _claimed_groups(note: Path, offer: Offer) -> set[int]:
    """Return the groups that a note says are there; an unreadable one says nothing."""
    state = _read_state(note)
    if state is None or state.size != offer.size:
        return set()
    return {group for group in state.groups if 0 <= group < group_count(offer.size)}


def _read_state(note: Path) -> _State | None:
    """Return what a note says, or None when it cannot be read."""
    try:
        return decode(_State, parse_json(read_limited(note, STATE_BYTES)))
    except (InputError, SchemaError):
        return None
