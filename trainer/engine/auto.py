"""The engine that chooses: it runs the first round for up to ten clients a few times both ways and keeps the faster one.

Compilation is tried only where the time it is expected to save over the rest of the run exceeds the time that it is
expected to take; it is kept only if it then proves faster.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.errors import InputError
from trainer.engine.base import Client, Engine, RoundKey, RoundResult, in_device_order
from trainer.engine.cohort import CohortEngine
from trainer.engine.compilation import Compiler
from trainer.engine.loop import LoopEngine
from trainer.methods.base import Method, State

CHOICES = ("loop", "cohort", "compiled")
TRIAL_CLIENTS = 10
TRIALS = 2
EXPECTED_COMPILE_SECONDS = 20.0
EXPECTED_GAIN = 0.1  # share of a round's time; the traces are fused already

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """Which engine runs, and why: ``loop``, ``cohort`` or ``compiled``."""

    name: str
    reason: str


class AutoEngine:
    """Runs rounds on the engine that is faster for this method and this data.

    Args:
        rounds: Rounds that are to come, to weigh compilation; None to leave it out.
        choice: A choice made earlier, as a resumed run needs it: results differ between engines by rounding.

    Attributes:
        choice: What was chosen; None before the first round.
        compiler: Seconds and failures of compilation.
    """

    def __init__(self, rounds: int | None = None, choice: Choice | None = None) -> None:
        self._rounds = rounds
        self.choice = choice
        self.compiler = Compiler()
        self._engine: Engine | None = None if choice is None else self._named(choice.name)

    def run_round(
        self, method: Method, server: State, clients: Sequence[Client], key: RoundKey, private: Mapping[str, State] | None = None
    ) -> RoundResult:
        """Return what the clients send up and keep, choosing the engine at the first call."""
        if self._engine is None:
            self._engine = self._choose(method, server, clients, key, private)
        return self._engine.run_round(method, server, clients, key, private)

    def _named(self, name: str) -> Engine:
        """Return a new engine."""
        if name not in CHOICES:
            raise InputError("the engine that was chosen is unknown", expected=" or ".join(CHOICES), got=name)
        if name == "loop":
            return LoopEngine()
        return CohortEngine(compiler=self.compiler if name == "compiled" else None)

    def _choose(
        self, method: Method, server: State, clients: Sequence[Client], key: RoundKey, private: Mapping[str, State] | None
    ) -> Engine:
        """Return the faster engine; its reason is logged."""
        few = in_device_order(clients)[:TRIAL_CLIENTS]

        def seconds(engine: Engine) -> float:
            times = []
            for _ in range(TRIALS + 1):  # the first also traces
                started = time.perf_counter()
                engine.run_round(method, server, few, key, private)
                times.append(time.perf_counter() - started)
            return min(times[1:]) / len(few)

        engines = {name: self._named(name) for name in ("loop", "cohort")}
        measured = {name: seconds(engine) for name, engine in engines.items()}
        if self._is_worth_compiling(min(measured.values()), len(clients)):
            engines["compiled"] = self._named("compiled")
            compiled = seconds(engines["compiled"])
            if self.compiler.failure is None:  # otherwise it ran the traces as they are
                measured["compiled"] = compiled
        best = min(measured, key=lambda name: measured[name])
        reason = ", ".join(f"{name} {value * 1e3:.2f} ms a client" for name, value in measured.items())
        self.choice = Choice(best, reason + self._about_compilation(measured))
        logger.info("engine %s: %s", best, self.choice.reason)
        return engines[best]

    def _is_worth_compiling(self, seconds_per_client: float, clients: int) -> bool:
        """Tell whether compiling is expected to pay for itself."""
        remaining = 0.0 if self._rounds is None else seconds_per_client * clients * self._rounds
        return self.compiler.failure is None and EXPECTED_GAIN * remaining > EXPECTED_COMPILE_SECONDS

    def _about_compilation(self, measured: Mapping[str, float]) -> str:
        """Return what became of compilation."""
        if self.compiler.failure is not None:
            return f"; not compiled: {self.compiler.failure}"
        return f"; compiling took {self.compiler.seconds:.1f} s" if "compiled" in measured else "; compiling would not pay for itself"
