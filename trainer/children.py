"""Child processes that end with the block that started them, whatever ends the block: an error, Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType

KILL_SECONDS = 10.0


class Children:
    """Starts commands from any thread, inside a ``with`` block of the main one."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ended = False
        self._before: object = None

    def __enter__(self) -> Children:
        """Turn SIGTERM into an ordinary end."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, _end_on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End what still runs."""
        self.stop()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)  # type: ignore[arg-type]  # what signal itself returned

    def run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end and return what it printed; a child that was stopped has a negative code."""
        with self._lock:
            if self._ended:
                return subprocess.CompletedProcess(list(command), -signal.SIGTERM, "", "stopped")
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self._running.add(child)
        output, errors = child.communicate()
        with self._lock:
            self._running.discard(child)
        return subprocess.CompletedProcess(list(command), child.returncode, output, errors)

    def stop(self) -> None:
        """End every child that still runs, gently at first; none starts any more."""
        with self._lock:
            self._ended, left = True, list(self._running)
        for child in left:
            child.terminate()
        for child in left:
            try:
                child.wait(KILL_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()


def _end_on_signal(number: int, _: FrameType | None) -> None:
    """Leave through every ``with`` block."""
    sys.exit(128 + number)
