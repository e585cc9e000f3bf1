"""How sessions run on this device: a choice of the program that embeds us, never of a bundle."""

from __future__ import annotations

import os
from dataclasses import dataclass

from protocol.arguments import require, whole_number

SMALL_GRAPH_BYTES = 4 * 1024 * 1024  # weights that a call reads; below it a second thread costs more than it brings


@dataclass(frozen=True)
class SessionSettings:
    """Threads and execution providers.

    Attributes:
        threads: Threads of one call; None for one on small graphs, else as many as the scheduler allows this process.
        providers: Execution providers of ONNX Runtime, the preferred first; the CPU's always follows.
    """

    threads: int | None = None
    providers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a number of threads that cannot be."""
        if self.threads is not None:
            whole_number(self.threads, "the number of a session's threads")
        for name in require(self.providers, tuple, "the execution providers", "a tuple of names, the preferred first"):
            require(name, str, "an execution provider", "its name")

    def threads_for(self, weight_bytes: int) -> int:
        """Return the threads for a graph that reads so many bytes of weights."""
        if self.threads is not None:
            return self.threads
        return 1 if weight_bytes < SMALL_GRAPH_BYTES else usable_cores()


def usable_cores() -> int:
    """Return the cores that the scheduler allows this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
