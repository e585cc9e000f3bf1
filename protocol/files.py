"""Reading with a limit and writing whole: what other modules do with files goes through here."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import FedtailorError, InputError


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file so that a crash leaves either the old content or the new.

    Args:
        path: Where; the folder must exist.
        data: The whole content.
        mode: Permission bits of the file.
    """
    with _complete_copy(path, (data,), mode) as temporary:
        temporary.replace(path)
    sync_folder(path.parent)


def write_from(path: Path, pieces: Iterable[bytes], mode: int = 0o644) -> None:
    """Write a file from pieces, of which one is in memory at a time; whole or not at all, as ``write_atomically``."""
    with _complete_copy(path, pieces, mode) as temporary:
        temporary.replace(path)
    sync_folder(path.parent)


def write_new(path: Path, data: bytes, mode: int) -> bool:
    """Write a file whole, never over anything that is there; tell whether it was written.

    Two processes may try at once: one of them wins.
    """
    with _complete_copy(path, (data,), mode) as temporary:
        try:
            os.link(temporary, path)  # unlike a rename, this fails when the name is taken
        except FileExistsError:
            return False
    sync_folder(path.parent)
    return True


@contextmanager
def _complete_copy(path: Path, pieces: Iterable[bytes], mode: int) -> Iterator[Path]:
    """Give a file beside ``path`` that holds all of the data on disk; the block puts it in place, or it is removed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_plain_file(path: Path, error: type[FedtailorError] = InputError) -> None:
    """Refuse what is no plain file: absent, a folder, a pipe that would never end.

    Raises:
        FedtailorError: Of the class ``error``.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as problem:
        raise error(f"{path} cannot be opened", expected="a plain file", got=str(getattr(problem, "strerror", problem))) from problem
    if not stat.S_ISREG(mode):
        raise error(f"{path} cannot be read", expected="a plain file", got=stat.filemode(mode))


def read_limited(path: Path, limit: int, error: type[FedtailorError] = InputError, *, one_name: bool = False) -> bytes:
    """Return the content of a plain file of at most ``limit`` bytes; links are not followed.

    Args:
        path: The file.
        limit: Largest size in bytes; checked before anything is read.
        error: Class of the error to raise.
        one_name: Whether a file that has further names (hard links) is refused: whoever holds another name can change it.

    Raises:
        FedtailorError: Of the class ``error``: absent, unreadable, a link, a folder, a device, or too large.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as problem:  # ValueError: a name with a zero byte
        raise error(f"{path!s} cannot be opened", expected="a plain file", got=str(getattr(problem, "strerror", problem))) from problem
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):  # before fdopen, which fails on a folder in its own way
        os.close(handle)
        raise error(f"{path} cannot be read", expected="a plain file", got=stat.filemode(facts.st_mode))
    with os.fdopen(handle, "rb") as file:
        if one_name and facts.st_nlink != 1:
            raise error(f"{path} has further names", expected="a file without hard links", got=f"{facts.st_nlink} names", hint="copy it")
        if facts.st_size > limit:
            raise error(f"{path} is too large", expected=f"at most {limit} bytes", got=f"{facts.st_size} bytes")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise error(f"{path} grew while it was read", expected=f"at most {limit} bytes", got="more")
    return data
