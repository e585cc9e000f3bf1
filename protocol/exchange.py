"""Putting a finished folder in another's place, so that a whole one is there whatever stops the program.

Linux and some file systems exchange two names in one step; elsewhere there are two renames, the first of which is undone when the
second fails, and by the next call if the program was killed between them. Source: rename(2), RENAME_EXCHANGE.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

from protocol.files import sync_folder

AT_FDCWD, RENAME_EXCHANGE = -100, 2
NOT_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # the kernel, or the file system, cannot exchange


def recover_folder(target: Path) -> None:
    """Put back what a killed ``replace_folder`` had moved aside, or remove it where the new folder is in place.

    Raises:
        OSError: The system refuses.
    """
    aside = _aside(target)
    if not aside.exists():
        return
    if target.exists():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.rename(target)
        sync_folder(target.parent)


def replace_folder(finished: Path, target: Path) -> None:
    """Move a finished folder to its target beside it; what was there is gone afterwards.

    Raises:
        OSError: The system refuses; then what was at the target is still there.
    """
    if not target.exists() or not any(target.iterdir()):
        finished.rename(target)  # goes over an empty folder too
        sync_folder(target.parent)
        return
    try:
        exchange(finished, target)
    except OSError as fault:
        if fault.errno not in NOT_HERE:
            raise
        _replace_in_two_steps(finished, target)
        return
    sync_folder(target.parent)
    shutil.rmtree(finished, ignore_errors=True)  # the old one, under the other name


def exchange(one: Path, other: Path) -> None:
    """Let two paths change names in one step.

    Raises:
        OSError: The system cannot, or refuses.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(other))
    if call(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))


def _replace_in_two_steps(finished: Path, target: Path) -> None:
    """Move the old folder aside and the new one in its place; go back if the second step fails."""
    aside = _aside(target)
    target.rename(aside)
    try:
        finished.rename(target)
    except OSError:
        with suppress(OSError):  # then the next call puts it back
            aside.rename(target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _aside(target: Path) -> Path:
    """Return where the old folder waits between the two steps; the same for every call, so that the next one finds it."""
    return target.with_name(f".{target.name}.aside")
