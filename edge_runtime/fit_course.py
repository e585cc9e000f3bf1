"""The loop of a training on a device: a step, its loss, what is kept, what is undone, and when to stop."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edge_runtime.fit_folder import Standing
from edge_runtime.sampling import ClassIndex, DrawKey
from edge_runtime.training_phase import TrainingPhase
from protocol.arguments import real_number, whole_number
from protocol.errors import InputError, NumericalError
from protocol.tensors import Array

CHUNK_STEPS = 64  # steps that are drawn at once, or as many more as make whole passes over the data
MOST_RESTORES = 3  # in a row
SLOWER = 0.5  # what the learning rate is multiplied by after a restore
SHOWN_LOSSES = 50
RATE = "learning_rate"


@dataclass(frozen=True)
class FitOptions:
    """How a training behaves on a device that has other things to do.

    Attributes:
        processor_share: Share of the time that steps may run, above 0 and at most 1; the rest is slept.
        save_every: Steps between two states that are kept.
        progress: Called after each step with the steps taken and its loss.
    """

    processor_share: float = 1.0
    save_every: int = CHUNK_STEPS
    progress: Callable[[int, float], None] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if not 0 < real_number(self.processor_share, "the share of the processor") <= 1:
            raise InputError("the share of the processor is out of range", expected="above 0, at most 1", got=self.processor_share)
        whole_number(self.save_every, "the number of steps between two kept states")


@dataclass(frozen=True)
class FitBudget:
    """What a training may take; it ends at whatever comes first.

    Attributes:
        steps: Steps in all, those of earlier calls on the same state included; None for no limit.
        seconds: Wall time of this call; None for no limit.
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse a budget without an end, or one that allows nothing."""
        if self.steps is None and self.seconds is None:
            raise InputError("a training needs an end", expected="steps or seconds")
        if self.steps is not None:
            whole_number(self.steps, "the budget of steps")
        if self.seconds is not None and not real_number(self.seconds, "the budget of seconds") > 0:
            raise InputError("the budget of seconds is wrong", expected="above 0 seconds", got=self.seconds)


@dataclass(frozen=True)
class Lesson:
    """What is learned from, and how.

    Attributes:
        samples: (N, *shape), raw.
        labels: (N,) int64.
        judge: State -> its loss on validation samples; None without such.
        options: How.
    """

    samples: Array
    labels: NDArray[np.int64]
    judge: Callable[[Mapping[str, Array]], float] | None
    options: FitOptions


@dataclass
class Course:
    """One call of ``fit``.

    Attributes:
        phase: The step.
        context: What it reads and does not change.
        standing: The last good state; replaced as the course goes on.
        lesson: What is learned from.
        budget: When to end.
    """

    phase: TrainingPhase
    context: Mapping[str, Array]
    standing: Standing
    lesson: Lesson
    budget: FitBudget
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=SHOWN_LOSSES))
    began: float = field(default_factory=time.monotonic)
    _chunk: tuple[int, int] | None = None
    _drawn: Mapping[str, Array] = field(default_factory=dict)

    def run(self) -> None:
        """Take steps until the budget ends; each of them is kept or undone.

        Raises:
            NumericalError: No finite loss after several restores.
        """
        index, in_a_row = ClassIndex(self.lesson.labels), 0
        if self.lesson.judge is None:  # what an earlier call judged says nothing about this one
            self.standing.record = replace(self.standing.record, best_loss=None, best_step=None)
        step, state = self.standing.record.step, dict(self.standing.latest)
        while not self._ended(step):
            began = time.monotonic()
            state, loss = self._step(index, step, state)
            step += 1
            due = step % self.lesson.options.save_every == 0 or self._ended(step)
            if not math.isfinite(loss) or (due and not _finite(state)):
                in_a_row += 1
                step, state = self._restore(in_a_row)
                continue
            self.losses.append(loss)
            if due:
                self._keep(step, state)
                in_a_row = 0
            if self.lesson.options.progress is not None:
                self.lesson.options.progress(step, loss)
            self._rest(time.monotonic() - began)
        if step > self.standing.record.step and _finite(state):  # the clock ran out between two looks at it
            self._keep(step, state)

    def _ended(self, step: int) -> bool:
        """Tell whether the budget is used up."""
        steps, seconds = self.budget.steps, self.budget.seconds
        return (steps is not None and step >= steps) or (seconds is not None and time.monotonic() - self.began >= seconds)

    def _step(self, index: ClassIndex, step: int, state: dict[str, Array]) -> tuple[dict[str, Array], float]:
        """Return state and loss after one step."""
        record = self.standing.record
        together = self.phase.pass_steps(len(index))
        drawn_steps = -(-CHUNK_STEPS // together) * together  # says nothing of how often a state is kept
        wanted = (step // drawn_steps, record.restored)
        if self._chunk != wanted:
            number = wanted[0] + (record.restored << 32)  # other draws after a restore: the same would come to the same end
            self._drawn, self._chunk = self.phase.draw(DrawKey(record.seed, number, "learner"), index, drawn_steps), wanted
        batch = self.phase.batch(self._drawn, step % drawn_steps, self.lesson.samples, self.lesson.labels)
        context = dict(self.context)
        if RATE in context:
            context[RATE] = np.array(float(context[RATE]) * SLOWER**record.restored, context[RATE].dtype)
        after, figures = self.phase.run(state, context, batch)
        return after, figures["loss"]

    def _restore(self, in_a_row: int) -> tuple[int, dict[str, Array]]:
        """Return the last good step and state."""
        standing = self.standing
        if in_a_row > MOST_RESTORES:
            what = f"the loss is not finite after step {standing.record.step}, at ever lower learning rates"
            hint = "look at the samples, or lower learning_rate; the last good state is kept"
            raise NumericalError(what, expected="finite numbers", hint=hint)
        restored = replace(standing.record, restored=standing.record.restored + 1)
        standing.keep(restored, standing.latest, standing.best)
        return restored.step, dict(standing.latest)

    def _keep(self, step: int, state: dict[str, Array]) -> None:
        """Make a state the last good one."""
        record, best = replace(self.standing.record, step=step), self.standing.best
        if self.lesson.judge is not None and step % self.lesson.options.save_every == 0:  # wherever a training was stopped
            loss = self.lesson.judge(state)
            if math.isfinite(loss) and (record.best_loss is None or loss < record.best_loss):
                record, best = replace(record, best_loss=loss, best_step=step), dict(state)
        self.standing.keep(record, dict(state), best)

    def _rest(self, worked: float) -> None:
        """Sleep as long as the share of the processor asks for after so many seconds of work."""
        share = self.lesson.options.processor_share
        if share < 1:
            rest = worked * (1 / share - 1)
            seconds = self.budget.seconds
            left = rest if seconds is None else seconds - (time.monotonic() - self.began)
            time.sleep(max(0.0, min(rest, left)))


def _finite(state: Mapping[str, Array]) -> bool:
    """Tell whether all of a state is finite."""
    return all(bool(np.isfinite(tensor).all()) for tensor in state.values())
