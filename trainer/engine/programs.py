"""Steps as programs, made once for each shape and kept over rounds."""

from __future__ import annotations

import logging
from collections import OrderedDict

from trainer.engine.compilation import Compiler
from trainer.methods.base import Batch, Context, LocalStep, State
from trainer.tracing import TraceKey, cohort_step, trace_key, trace_step, without_gradients

MAXIMUM_PROGRAMS = 64  # a bound for data whose last batches all differ in size

logger = logging.getLogger(__name__)


class StepPrograms:
    """Makes and keeps the programs of steps.

    A program may overwrite the state that it is given: pass a state that is yours.

    Args:
        traced: Whether steps are traced; False runs them as they are written.
        compiler: Turns traces into machine code, or None to run them as they are.
    """

    def __init__(self, *, traced: bool = True, compiler: Compiler | None = None) -> None:
        self._traced = traced
        self._compiler = compiler
        self._programs: OrderedDict[tuple[LocalStep, bool, TraceKey], LocalStep] = OrderedDict()

    def single(self, step: LocalStep, state: State, batch: Batch, context: Context) -> LocalStep:
        """Return the program of one client's step for tensors of these shapes."""
        return self._program(step, state, batch, context, many=False)

    def cohort(self, step: LocalStep, state: State, batch: Batch, context: Context) -> LocalStep:
        """Return the program of many clients' step for stacked tensors of these shapes."""
        return self._program(step, state, batch, context, many=True)

    def _program(self, step: LocalStep, state: State, batch: Batch, context: Context, *, many: bool) -> LocalStep:
        """Return a program, made at the first call for these shapes."""
        place = (step, many, trace_key(state, batch, context))
        if place in self._programs:
            self._programs.move_to_end(place)
            return self._programs[place]
        self._programs[place] = self._make(cohort_step(step) if many else step, state, batch, context)
        if len(self._programs) > MAXIMUM_PROGRAMS:
            self._programs.popitem(last=False)
        return self._programs[place]

    def _make(self, step: LocalStep, state: State, batch: Batch, context: Context) -> LocalStep:
        """Return a new program."""
        if not self._traced:
            return step
        if self._compiler is not None and self._compiler.failure is None:
            traced = trace_step(step, state, batch, context, in_place=False)
            compiled = self._compiler.compile(traced, state, batch, context)
            if compiled is not traced:
                return without_gradients(compiled)
        return without_gradients(trace_step(step, state, batch, context))
