"""Clocks: contestants in turn, quantiles, CPU of paced calls, memory of this process."""

from __future__ import annotations

import gc
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Call = Callable[[], object]
WARM_UP = 5


@dataclass(frozen=True)
class Quantiles:
    """Quantiles of a duration, in microseconds."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, nanoseconds: list[int]) -> Quantiles:
        """Return the quantiles of measured durations."""
        return cls(*(round(float(each) / 1000, 2) for each in np.quantile(nanoseconds, [0.5, 0.95, 0.99])))


@dataclass(frozen=True)
class Timings:
    """Durations of contestants that were called in turn, in nanoseconds, one of each a round."""

    taken: Mapping[str, list[int]]

    def quantiles(self) -> dict[str, Quantiles]:
        """Return each contestant's quantiles."""
        return {name: Quantiles.of(values) for name, values in self.taken.items()}

    def ratio(self, name: str, other: str) -> float:
        """Return the median over rounds of one duration to another: whatever slows a round slows both."""
        return round(float(np.median(np.array(self.taken[name]) / np.array(self.taken[other]))), 3)

    def overhead(self, name: str, other: str) -> float:
        """Return the median over rounds of the difference of two durations, in microseconds."""
        return round(float(np.median(np.array(self.taken[name]) - np.array(self.taken[other]))) / 1000, 2)


def in_turn(contestants: Mapping[str, Call], repeats: int) -> Timings:
    """Return how long each call takes. All are called in turn, so that whatever else this machine does falls on all alike.

    Each round begins with another one, for the first finds colder caches.
    """
    names = list(contestants)
    taken: dict[str, list[int]] = {name: [] for name in names}
    clock = time.perf_counter_ns
    collecting = gc.isenabled()
    gc.disable()
    try:
        for repeat in range(repeats + WARM_UP):
            for place in range(len(names)):
                name = names[(place + repeat) % len(names)]
                call = contestants[name]
                started = clock()
                call()
                passed = clock() - started
                if repeat >= WARM_UP:
                    taken[name].append(passed)
    finally:
        if collecting:
            gc.enable()
    return Timings(taken)


def paced_cpu_milliseconds(call: Call, count: int, interval_seconds: float) -> float:
    """Return the CPU time of this process for each of ``count`` calls, one begun every ``interval_seconds``, in milliseconds."""
    call()
    before, begin = time.process_time(), time.perf_counter()
    for place in range(count):
        time.sleep(max(0.0, begin + place * interval_seconds - time.perf_counter()))
        call()
    return 1000 * (time.process_time() - before) / count


def resident_megabytes() -> float | None:
    """Return the resident memory of this process, or None where the system does not say."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    found = re.search(r"VmRSS:\s+(\d+)", status.read_text(encoding="ascii"))
    return None if found is None else int(found[1]) / 1024
