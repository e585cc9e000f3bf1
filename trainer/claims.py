"""One writer for each run folder: a lock that the system lifts when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from protocol.errors import RunFolderError


class FolderClaim:
    """A folder that no other process may write into until this is released, let go or its process ends.

    Args:
        folder: An existing folder.

    Raises:
        RunFolderError: Another claim on the folder stands.
    """

    def __init__(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self.release = weakref.finalize(self, os.close, handle)  # called a second time, it does nothing
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            hint = "wait until it has ended, or name another folder"
            raise RunFolderError(f"{folder} is in use", expected="one training at a time", got="another one at work", hint=hint) from error
        except OSError:
            return  # a file system without locks
