"""A process that kills itself at a chosen write of SQLite, half of it done.

SQLite lets a test replace the system calls of its file layer (``xSetSystemCall`` of its VFS, made for just this). What a
process leaves behind when it is killed is what its writes were until then, so the writes are the moments that matter; that
the log is synchronised at each commit is SQLite's own promise of synchronous FULL.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import signal
from typing import Any

CALLS = {"write": 3, "pwrite": 4, "pwrite64": 4, "ftruncate": 2, "unlink": 1}
POINTER = ctypes.c_void_p
SET_CALL = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, ctypes.c_char_p, POINTER)
GET_CALL = ctypes.CFUNCTYPE(POINTER, POINTER, ctypes.c_char_p)


class Vfs(ctypes.Structure):
    """The head of ``sqlite3_vfs``, version 3 (sqlite3.h)."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("longest_path", ctypes.c_int),
        ("next", POINTER),
        ("name", ctypes.c_char_p),
        ("data", POINTER),
        ("methods", POINTER * 13),  # xOpen to xCurrentTimeInt64
        ("set_call", SET_CALL),
        ("get_call", GET_CALL),
    )


class KillingWrites:
    """Counts SQLite's writes; the one numbered ``at`` is cut in half, and the process dies. 0 for none."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.calls = at, 0
        library = ctypes.CDLL(_sqlite3.__file__)  # with what it is linked to
        library.sqlite3_vfs_find.restype = ctypes.POINTER(Vfs)
        library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
        vfs = library.sqlite3_vfs_find(None)
        self._kept: list[Any] = []
        for name, count in CALLS.items():
            address = vfs.contents.get_call(vfs, name.encode())
            if address:
                self._replace(vfs, name, count, address)

    def _replace(self, vfs: Any, name: str, count: int, address: int) -> None:
        word = ctypes.c_ssize_t
        kind = ctypes.CFUNCTYPE(word, *[word] * count)
        original = kind(address)

        def call(*arguments: int) -> int:
            self.calls += 1
            if self.calls == self.at:
                if "write" in name:
                    original(arguments[0], arguments[1], arguments[2] // 2, *arguments[3:])
                os.kill(os.getpid(), signal.SIGKILL)
            return int(original(*arguments))

        replacement = kind(call)
        self._kept.append(replacement)
        vfs.contents.set_call(vfs, name.encode(), ctypes.cast(replacement, POINTER))
