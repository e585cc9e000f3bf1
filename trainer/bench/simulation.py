"""Times the contestants in turn, round by round, so that a busy machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer.bench.contestants import Round, federated, plain_loop
from trainer.bench.peers import peer_seconds
from trainer.bench.work import make_work
from trainer.engine.auto import AutoEngine
from trainer.engine.cohort import CohortEngine
from trainer.engine.loop import LoopEngine

ROUNDS_TO_COME = 1000  # what `auto` is told that compilation can be spread over
WARM_UP_ROUNDS = 2


@dataclass(frozen=True)
class Timing:
    """Seconds per round of each contestant on one work, medians; and what `auto` did.

    Attributes:
        seconds: By contestant: ``plain``, ``loop``, ``cohort``, ``auto``, and the peers that are installed.
        compile_seconds: Seconds that `auto` spent on compilation.
        choice: The engine that `auto` chose.
        reason: Its reason.
    """

    seconds: Mapping[str, float]
    compile_seconds: float
    choice: str
    reason: str

    def as_values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        told = {"compile_seconds": self.compile_seconds, "auto_choice": self.choice, "auto_reason": self.reason}
        return {**self.seconds, **told, "ratios": {name: value / self.seconds["plain"] for name, value in self.seconds.items()}}


def time_simulation(name: str, rounds: int, observe: Callable[[int], None] | None = None, *, peers: bool = True) -> Timing:
    """Return the timing of one work.

    Args:
        name: ``mlp`` or ``cnn``.
        rounds: Timed rounds of each contestant, after two to warm up.
        observe: Called after each round with the number of rounds done by all contestants.
        peers: Whether other simulators that are installed run too, each in a process of its own.
    """
    work = make_work(name)
    auto = AutoEngine(ROUNDS_TO_COME)
    contestants = {
        "plain": plain_loop(work),
        "loop": federated(work, LoopEngine()),
        "cohort": federated(work, CohortEngine()),
        "auto": federated(work, auto),
    }
    seconds = _in_turn(contestants, rounds, observe)
    if peers:
        seconds |= peer_seconds(work.name, rounds)
    choice, reason = ("", "") if auto.choice is None else (auto.choice.name, auto.choice.reason)
    return Timing(seconds, auto.compiler.seconds, choice, reason)


def _in_turn(contestants: Mapping[str, Round], rounds: int, observe: Callable[[int], None] | None) -> dict[str, float]:
    """Return each contestant's median seconds per round."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    done = 0
    for number in range(WARM_UP_ROUNDS + rounds):
        for name, run in contestants.items():
            started = time.perf_counter()
            run(number)
            times[name].append(time.perf_counter() - started)
            done += 1
            if observe is not None:
                observe(done)
    return {name: statistics.median(values[WARM_UP_ROUNDS:]) for name, values in times.items()}
