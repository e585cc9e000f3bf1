"""Work in a process of its own with bounds on memory, processor time and waiting: whatever happens there, we live on.

What a child does is a module with a function ``answer(request)``; request and answer are JSON values. Limits are set
inside the child before anything large is imported, since nothing may run safely between fork and exec.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import FedtailorError

SHOWN_CHARACTERS = 4000
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each thread of a BLAS takes address space


@dataclass(frozen=True)
class Limits:
    """What a child may use.

    Attributes:
        memory_bytes: Address space (RLIMIT_AS).
        cpu_seconds: Processor time (RLIMIT_CPU).
        wall_seconds: Time on the clock until it is killed.
    """

    memory_bytes: int = 1 << 30
    cpu_seconds: int = 60
    wall_seconds: float = 120.0


@dataclass(frozen=True)
class ChildOutcome:
    """How a child ended.

    Attributes:
        content: Its answer; None when there is none.
        error: Class, sentence and exit code of the error it raised, or None.
        stage: The last thing that it said it was about to do.
        signal: Name of the signal that killed it, or None.
        timed_out: Whether the wall limit ended it.
        output: The end of what it wrote on standard error.
    """

    content: Any
    error: dict[str, Any] | None
    stage: str
    signal: str | None
    timed_out: bool
    output: str


def run_child(module: str, request: dict[str, Any], limits: Limits) -> ChildOutcome:
    """Run ``module.answer(request)`` in a new process and return how it ended; never raises for what happens there.

    Args:
        module: Dotted name of a module with ``answer``.
        request: A JSON object.
        limits: What the process may use.

    Raises:
        OSError: No process could be started.
    """
    job = json.dumps({"module": module, "request": request, "memory": limits.memory_bytes, "cpu": limits.cpu_seconds})
    command = [sys.executable, "-m", "edge_runtime.child"]
    # The child finds what this process finds, in the same order, and nothing in the folder where a user happens to stand.
    # (abspath, since resolve() would follow links out of a virtual environment)
    places = [os.path.abspath(place) for place in sys.path if place] + [str(Path(__file__).resolve().parents[1])]  # noqa: PTH100
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(dict.fromkeys(places))}
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd="/",
        text=True,
        errors="replace",
    )
    timed_out = False
    with process:
        try:
            output, complaints = process.communicate(job, timeout=limits.wall_seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
            process.kill()
            output, complaints = process.communicate()
        except BaseException:
            process.kill()
            raise
    return _outcome(process.returncode, output, complaints, timed_out=timed_out)


def _outcome(code: int, output: str, complaints: str, *, timed_out: bool) -> ChildOutcome:
    """Return what a child's lines and exit status say."""
    said: dict[str, Any] = {}
    for line in output.splitlines():
        try:
            said.update(json.loads(line))
        except ValueError:
            continue  # a library printed something
    killer = signal.Signals(-code).name if code < 0 and not timed_out else None
    end = complaints.strip()[-SHOWN_CHARACTERS:]
    return ChildOutcome(said.get("answer"), said.get("error"), str(said.get("stage", "start")), killer, timed_out, end)


def at_stage(name: str) -> None:
    """Say in a child what comes next, so that its parent knows where it died."""
    _say({"stage": name})


def _say(content: dict[str, Any]) -> None:
    """Write one line to the parent."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def _limit(kind: int, bound: int, grace: int = 0) -> None:
    """Lower one limit of this process for good; with some grace, a signal that names the limit comes before SIGKILL."""
    _, hard = resource.getrlimit(kind)
    most = bound + grace if hard == resource.RLIM_INFINITY else min(bound + grace, hard)
    resource.setrlimit(kind, (min(bound, most), most))


def main() -> int:
    """Do the job on standard input."""
    job = json.loads(sys.stdin.read())
    _limit(resource.RLIMIT_AS, job["memory"])
    _limit(resource.RLIMIT_CPU, job["cpu"], grace=5)
    _limit(resource.RLIMIT_CORE, 0)
    try:
        answer = importlib.import_module(job["module"]).answer(job["request"])
    except FedtailorError as error:
        _say({"error": {"class": type(error).__name__, "sentence": error.sentence(), "exit_code": error.exit_code}})
        return 1
    except MemoryError:
        _say(
            {
                "error": {
                    "class": "MemoryError",
                    "sentence": f"out of memory: more than {job['memory'] >> 20} MiB were needed",
                    "exit_code": 1,
                }
            }
        )
        return 1
    _say({"answer": answer})
    return 0


if __name__ == "__main__":
    sys.exit(main())
