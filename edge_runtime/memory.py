"""What the C library does with memory that a session gives back.

glibc raises by itself the size above which a freed block returns to the system: after a few swaps of bundles some twenty megabytes
lie about, more or less from hour to hour. Held at one megabyte the size of a process stays flat, and small networks are as quick as
before. Blocks of larger networks are fetched anew for each call, which an arena of the session avoids.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform

RETURNED_BYTES = 1024 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
CHOSEN_BY_CALLER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@functools.cache
def return_freed_memory() -> bool:
    """Have large freed blocks returned to the system, once a process, and tell whether that was done.

    Nothing is done where the C library is another one, or where the environment holds one of its own settings of this.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in CHOSEN_BY_CALLER):
        return False
    set_option = ctypes.CDLL(None).mallopt
    return bool(set_option(M_MMAP_THRESHOLD, RETURNED_BYTES)) and bool(set_option(M_TRIM_THRESHOLD, RETURNED_BYTES))
