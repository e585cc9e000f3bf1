"""One program in many real processes, each killed at another point: they are forked from one that has imported everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.source_tree import ROOT

FORK = """
import json, os, sys
from pathlib import Path
exec(sys.argv[1])
for at in json.loads(sys.argv[3]):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 1)
        try:
            run(Path(sys.argv[2]) / str(at), at)
            sys.stdout.flush()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        said = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([at, status, said.split()]), flush=True)
"""


@dataclass(frozen=True)
class Ending:
    """How one process ended.

    Attributes:
        at: The point at which it was to be killed; 0 for never.
        killed: Whether it was.
        said: The words that it had printed until then.
    """

    at: int
    killed: bool
    said: list[str]

    def numbers(self, word: str) -> set[int]:
        """Return the numbers that follow a word."""
        return {int(number) for before, number in zip(self.said, self.said[1:], strict=False) if before == word}


def run_forked(program: str, folder: Path, points: Iterable[int]) -> list[Ending]:
    """Run ``run(path, at)``, which the program defines, in a process of its own for each point; the path is ``folder / str(at)``."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, program, str(folder), json.dumps(list(points))]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True, timeout=200
    )
    assert result.stderr == ""
    endings = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(status in (0, -signal.SIGKILL) for _, status, _ in endings)
    return [Ending(at, status != 0, said) for at, status, said in endings]
