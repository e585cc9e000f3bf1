"""One process at a time in a folder: a lock that the system lifts when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import FedtailorError

POLL_SECONDS = 0.02


@contextmanager
def locked_folder(folder: Path, wait_seconds: float, busy: type[FedtailorError]) -> Iterator[None]:
    """Hold a folder's lock inside the block.

    The folder itself is locked, so that nothing is written and a read-only disk will do.

    Args:
        folder: An existing folder.
        wait_seconds: How long to wait while another process, or another thread, holds the lock.
        busy: Class of the error to raise then.

    Raises:
        FedtailorError: Of the class ``busy``: the lock did not become free in time.
        OSError: The folder is absent, or its file system knows no locks.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _acquire(handle, folder, time.monotonic() + wait_seconds, busy)
        yield
    finally:
        os.close(handle)


def _acquire(handle: int, folder: Path, deadline: float, busy: type[FedtailorError]) -> None:
    """Take the lock, or give up at the deadline."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                got = "another one at work"
                raise busy(f"{folder} is in use", expected="one process at a time", got=got, hint="try again in a moment") from None
            time.sleep(POLL_SECONDS)
        else:
            return
