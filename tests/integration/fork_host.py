"""Starts commands in forked processes: libraries that take seconds to load are loaded once, and each command is a process all the same.

As a program it reads one JSON request a line and answers each with one line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.source_tree import ROOT

PRELOADED = ("trainer.coordinator.run_rounds", "edge_runtime.fleet", "edge_runtime.agent_runner", "edge_runtime.sessions", "fedtailor")


class ForkHost:
    """The handle that a test holds; the host runs inside a ``with`` block, and everything that it started ends with it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._started: list[int] = []
        self._lock = threading.Lock()

    def __enter__(self) -> ForkHost:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "tests.integration.fork_host"]
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._started:
            self.kill(process)
        assert self._process is not None
        self._process.communicate(timeout=30)

    def start(self, output: Path, *words: object) -> int:
        """Start a command of fedtailor whose output and errors go to a file; return its process number."""
        process: int = self._ask({"start": [*map(str, words)], "output": str(output)})
        self._started.append(process)
        return process

    def wait(self, process: int, seconds: float) -> int | None:
        """Return a process's exit code, or None when it has not ended in time."""
        until = time.monotonic() + seconds
        while (code := self._ask({"poll": process})) is None and time.monotonic() < until:
            time.sleep(0.05)
        return None if code is None else int(code)

    def kill(self, process: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process that has not ended."""
        self._ask({"kill": process, "signal": int(number)})

    def _ask(self, request: dict[str, Any]) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())


def run(words: list[str], output: str) -> int:
    """Run a command in this process; return its exit code."""
    from fedtailor import main

    handle = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        main(words, prog_name="fedtailor")
    except SystemExit as end:
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else 1
    return 0


def serve() -> None:
    """Answer requests until the standard input ends."""
    for name in PRELOADED:
        __import__(name)
    codes: dict[int, int] = {}
    alive: set[int] = set()
    for line in sys.stdin:
        request, answer = json.loads(line), None
        for process in list(alive):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                codes[process] = os.waitstatus_to_exitcode(status)
                alive.discard(process)
        if "start" in request:
            answer = os.fork()
            if answer == 0:
                code = 1
                try:
                    code = run(request["start"], request["output"])
                finally:
                    os._exit(code)
            alive.add(answer)
        elif "poll" in request:
            answer = codes.get(request["poll"])
        elif request["kill"] in alive:
            os.kill(request["kill"], request["signal"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
