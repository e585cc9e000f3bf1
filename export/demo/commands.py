"""Running fedtailor's own commands as child processes, as a person would type them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from protocol.errors import DeadlineError, FedtailorError

KILL_SECONDS = 5.0


class CommandFailedError(FedtailorError):
    """A command of the demo failed.

    Args:
        name: The command.
        code: Its exit code, which becomes the demo's own.
        output: What it printed; with ``--json`` its last line is the error as an object.
    """

    def __init__(self, name: str, code: int, output: str) -> None:
        self.exit_code = code if code > 0 else 1  # type: ignore[misc]  # this one error speaks for many
        reason = output.strip().splitlines()[-1][-2000:] if output.strip() else "no output"
        with suppress(ValueError, KeyError, TypeError):
            reason = json.loads(reason)["message"]
        super().__init__(f"fedtailor {name} failed with exit code {code}: {reason}")


@dataclass(frozen=True)
class Commands:
    """Starts commands inside a ``with`` block, at whose end none of them is left.

    Attributes:
        timeout_seconds: How long one command may take.
        shown: The commands started so far, as one would type them.
    """

    timeout_seconds: float
    shown: list[str] = field(default_factory=list)
    _started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __enter__(self) -> Commands:
        """Turn SIGTERM and SIGINT into an ordinary end, so that what was started ends too."""
        for number in (signal.SIGTERM, signal.SIGINT):  # SIGINT too: a shell's background job starts with it ignored
            signal.signal(number, _end_on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End every command that still runs."""
        stop(self._started)

    def start(self, *words: object, quiet: bool = True) -> subprocess.Popen[str]:
        """Start ``fedtailor WORDS`` and return the process; its standard output is a pipe."""
        arguments = [str(word) for word in words]
        self.shown.append("fedtailor " + " ".join(arguments))
        errors = subprocess.PIPE if quiet else None
        command = [sys.executable, "-m", "fedtailor", *arguments]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        self._started.append(process)
        return process

    def run(self, *words: object, quiet: bool = True) -> str:
        """Run ``fedtailor WORDS`` to its end and return its standard output.

        Raises:
            CommandFailedError: It ended with another exit code than 0.
            DeadlineError: It took too long.
        """
        return self.finish(self.start(*words, quiet=quiet))

    def finish(self, process: subprocess.Popen[str]) -> str:
        """Wait for a started command and return its standard output.

        Raises:
            CommandFailedError: It ended with another exit code than 0.
            DeadlineError: It took too long.
        """
        name = " ".join(_words(process)[3:5])
        try:
            output, errors = process.communicate(timeout=self.timeout_seconds)
        except subprocess.TimeoutExpired as error:
            stop([process])
            raise DeadlineError(f"fedtailor {name} did not end", expected=f"at most {self.timeout_seconds:.0f} s") from error
        if process.returncode != 0:
            raise CommandFailedError(name, process.returncode, output or errors or "")
        return output


def _end_on_signal(number: int, _: FrameType | None) -> None:
    """Leave through every ``with`` block."""
    sys.exit(128 + number)


def _words(process: subprocess.Popen[str]) -> Sequence[str]:
    """Return the words that a process was started with."""
    return [str(word) for word in process.args] if isinstance(process.args, list) else [str(process.args)]


def last_json(output: str) -> dict[str, Any]:
    """Return the object on the last line of a command's output."""
    content: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return content


def stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End processes that still run, gently at first, and close their pipes."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdout, process.stderr):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
