"""A disk that fails or dies at a chosen moment: every call that changes files is counted, and the chosen one goes wrong.

Four ways to go wrong: ``crash`` (this call and all later ones do not happen, as if the process had been killed; a write
is cut in half), ``kill`` (the process really kills itself), ``error`` (this call fails with EIO, later ones work), and
``full`` (from here on nothing can be made or written). After a crash ``cut_power`` takes back what no fsync had made
durable: content that was not synced is gone, and so are names whose folder was not synced.
"""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

WRITERS = ("mkdir", "rename", "replace", "unlink", "rmdir", "link")
NEEDS_SPACE = {"open", "write", "mkdir", "fsync", "link", "pwrite", "posix_fallocate"}


class SimulatedCrashError(BaseException):
    """The process died here; not an Exception, so that nothing handles it."""


@dataclass
class Name:
    """A name that appeared in a folder and was not made durable yet."""

    path: Path
    came_from: Path | None
    before: bytes | None


class FaultyDisk:
    """Counts the calls inside a ``with`` block; the one numbered ``at`` goes wrong, from 1; 0 for none."""

    def __init__(self, at: int = 0, way: str = "crash") -> None:
        self.at, self.way = at, way
        self.calls = 0
        self.kinds: Counter[str] = Counter()
        self.dirty: set[Path] = set()
        self.pending: list[Name] = []
        self._restore: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> FaultyDisk:
        places: list[Any] = [os]
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 looks functions up there
        if accessor is not None:
            places.append(accessor)
        for name in WRITERS:
            for place in places:
                if hasattr(place, name):
                    self._patch(place, name, self._wrap(name, getattr(os, name)), static=place is not os)
        for name in ("open", "fsync", "fdopen", "pwrite", "ftruncate", "posix_fallocate"):
            self._patch(os, name, getattr(self, f"_{name}")(getattr(os, name)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for place, name, original in reversed(self._restore):
            setattr(place, name, original)

    def cut_power(self) -> None:
        """Take back what was not durable."""
        for name in reversed(self.pending):
            if not name.path.exists():
                continue
            if name.came_from is not None:
                name.path.rename(name.came_from)
            elif name.path.is_dir():
                shutil.rmtree(name.path)
            if name.before is not None:
                name.path.write_bytes(name.before)
        for path in self.dirty:
            if path.exists():
                path.write_bytes(b"")

    def _patch(self, place: Any, name: str, replacement: Any, *, static: bool = False) -> None:
        self._restore.append((place, name, place.__dict__[name]))
        setattr(place, name, staticmethod(replacement) if static else replacement)

    def _count(self, kind: str, half: Callable[[], object] | None = None) -> None:
        """Count a call, and fail if its time has come."""
        self.calls += 1
        self.kinds[kind] += 1
        if not self.at or self.calls < self.at:
            return
        first = self.calls == self.at
        if self.way == "full":
            if kind in NEEDS_SPACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        elif self.way == "error":
            if first:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        else:
            if first and half is not None:
                half()
            if self.way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise SimulatedCrashError

    def _wrap(self, kind: str, original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self._count(kind)
            if named or kind in ("unlink", "rmdir", "link"):  # rmtree works with folder handles
                return original(*arguments, **named)
            target = Path(arguments[-1] if kind in ("rename", "replace") else arguments[0]).absolute()
            before = target.read_bytes() if target.is_file() else None
            result = original(*arguments)
            came_from = Path(arguments[0]).absolute() if kind in ("rename", "replace") else None
            self.pending.append(Name(target, came_from, before))
            if came_from in self.dirty:
                self.dirty = {target if path == came_from else path for path in self.dirty}
            return result

        return call

    def _open(self, original: Any) -> Any:
        def call(path: Any, flags: int, *more: Any, **named: Any) -> Any:
            if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                self._count("open")
            return original(path, flags, *more, **named)

        return call

    def _fsync(self, original: Any) -> Any:
        def call(handle: int) -> None:
            self._count("fsync")
            original(handle)
            path = Path(f"/proc/self/fd/{handle}").readlink()
            self.dirty.discard(path)
            self.pending = [name for name in self.pending if name.path.parent != path]

        return call

    def _pwrite(self, original: Any) -> Any:
        def call(handle: int, data: Any, offset: int) -> int:
            self.dirty.add(Path(f"/proc/self/fd/{handle}").readlink())
            self._count("pwrite", lambda: original(handle, data[: len(data) // 2], offset))
            written: int = original(handle, data, offset)
            return written

        return call

    def _ftruncate(self, original: Any) -> Any:
        return self._on_handle("ftruncate", original)

    def _posix_fallocate(self, original: Any) -> Any:
        return self._on_handle("posix_fallocate", original)

    def _on_handle(self, kind: str, original: Any) -> Any:
        """Return a call that changes an open file as a whole."""

        def call(handle: int, *arguments: int) -> None:
            self._count(kind)
            self.dirty.add(Path(f"/proc/self/fd/{handle}").readlink())
            original(handle, *arguments)

        return call

    def _fdopen(self, original: Any) -> Any:
        def call(handle: int, mode: str = "r", *more: Any, **named: Any) -> Any:
            file = original(handle, mode, *more, **named)
            return _CountedFile(file, self, Path(f"/proc/self/fd/{handle}").readlink()) if "w" in mode else file

        return call


class _CountedFile:
    """A file whose writes are counted."""

    def __init__(self, file: Any, disk: FaultyDisk, path: Path) -> None:
        self._file, self._disk, self._path = file, disk, path

    def __enter__(self) -> _CountedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._disk.dirty.add(self._path)
        self._disk._count("write", half)
        written: int = self._file.write(data)
        return written
