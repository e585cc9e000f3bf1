"""Training on a device, with the steps that its bundle brings: bounded in steps, seconds and processor, and never half done.

The state is kept every so many steps: in memory, and where a folder is given on disk, whole or not at all. Draws depend on the seed
and the number of the step alone, so a training that was stopped anywhere goes on to the very result of one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import Bundle
from edge_runtime.fit_course import Course, FitBudget, FitOptions, Lesson
from edge_runtime.fit_folder import FitRecord, Standing
from edge_runtime.sampling import ClassIndex, DrawKey
from edge_runtime.training_phase import CONTEXT_FILE, STATE_FILE, TrainingPhase, bundled_tensors, training_phases
from protocol.arguments import as_path, real_number, require, whole_number
from protocol.errors import BundleError, InputError, LabelError
from protocol.tensors import Array
from protocol.trust import TrustPolicy

VALIDATION_ROWS = 64
Labels = NDArray[np.integer]


@dataclass(frozen=True)
class FitResult:
    """What a call of ``fit`` came to.

    Attributes:
        steps: Steps in all.
        loss: Mean loss of the latest steps, at most 50; NaN where no step was taken.
        seconds: Wall time of this call.
        restored: How often the last good state was restored, in all.
        validation: Loss of the state that counts on the validation samples; None without such.
        best_step: Steps after which that state was reached; None without validation.
    """

    steps: int
    loss: float
    seconds: float
    restored: int
    validation: float | None
    best_step: int | None


class Learner:
    """A model that learns from a device's own labelled samples.

    Args:
        bundle: A bundle that was exported with its training steps.
        phase: Name of the step to repeat, ``train_...``; may be left out where the method has one alone.
        seed: Seed of all draws.
        context: Numbers that steps read, by name, in place of those of the bundle: ``learning_rate``.
        folder: Where the state is kept; one that lies there is gone on from.
        data: Digest of the samples, labels and split to come, if a state in the folder from other ones is to be refused.

    Raises:
        BundleError: It has no training steps, or this version cannot do them.
        InputError: The folder holds the state of another bundle, step, seed or data, or a damaged one; or a number that no step reads.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        phase: str | None = None,
        seed: int = 0,
        context: Mapping[str, float] | None = None,
        folder: Path | None = None,
        data: str = "",
    ) -> None:
        self.bundle = require(bundle, Bundle, "the bundle", "edge_runtime.Bundle")
        whole_number(seed, "the seed", lowest=0)
        folder = None if folder is None else as_path(folder, "the folder of the state")
        if folder is not None and folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is no folder", expected="a folder, or a path where one can be made", got="a file")
        self._phase = _chosen(training_phases(bundle), phase)
        self._context = _context(bundle, context or {})
        state = bundled_tensors(bundle, STATE_FILE)
        origin = (bundle.digest, str(bundle.path.resolve()), TrustPolicy.of(bundle.trusted))
        self._standing = Standing(FitRecord(*origin, self._phase.name, seed, data), state, dict(state), folder)
        self._standing.resume()

    @property
    def state(self) -> dict[str, Array]:
        """Return the state that counts: the best on validation samples if there were any, else the latest."""
        standing = self._standing
        return dict(standing.latest if standing.record.best_loss is None else standing.best)

    @property
    def steps(self) -> int:
        """Return the steps taken in all."""
        return self._standing.record.step

    def fit(
        self,
        x: Array,
        y: Labels,
        *,
        steps: int | None = None,
        seconds: float | None = None,
        val: tuple[Array, Labels] | None = None,
        options: FitOptions = FitOptions(),  # noqa: B008  # frozen
    ) -> FitResult:
        """Train until the budget ends, whatever of it comes first.

        A loss or state that is not finite restores the last good state and halves the learning rate.

        Args:
            x: Raw samples, (N, *shape).
            y: Their class indices, (N,) integers.
            steps: Steps in all, those of earlier calls included.
            seconds: Wall time of this call.
            val: Samples (V, *shape) and labels (V,) that decide which state counts.
            options: Share of the processor, how often a state is kept, and who is told of progress.

        Raises:
            InputError: Samples or labels that do not fit, or a budget that allows nothing.
            NumericalError: No finite loss after several restores; the last good state is the learner's.
        """
        budget = FitBudget(steps, seconds)
        samples, labels = self._checked(x, y)
        if val is not None and len(require(val, tuple, "the validation data", "samples and labels, as a pair")) != 2:
            raise InputError("the validation data are wrong", expected="samples and labels, as a pair", got=f"{len(val)} things")
        held = None if val is None else self._checked(*val)
        judge = None if held is None else lambda state: self._loss(state, *held)
        course = Course(self._phase, self._context, self._standing, Lesson(samples, labels, judge, options), budget)
        course.run()
        record = self._standing.record
        mean = float(np.mean(course.losses)) if course.losses else math.nan
        return FitResult(record.step, mean, time.monotonic() - course.began, record.restored, record.best_loss, record.best_step)

    def loss(self, x: Array, y: Labels) -> float:
        """Return the mean loss of the state that counts, on raw samples (N, *shape) and class indices (N,)."""
        return self._loss(self.state, *self._checked(x, y))

    def _loss(self, state: Mapping[str, Array], samples: Array, labels: NDArray[np.int64]) -> float:
        """Return a mean loss: what a step says of its batch before it changes anything."""
        total, key = 0.0, DrawKey(self._standing.record.seed, 0, "validation")
        for begin in range(0, len(labels), VALIDATION_ROWS):
            rows = slice(begin, begin + VALIDATION_ROWS)
            batch = self._phase.whole_batch(key, ClassIndex(labels), samples[rows], labels[rows])
            total += self._phase.run(state, self._context, batch)[1]["loss"] * len(labels[rows])
        return total / len(labels)

    def _checked(self, x: Array, y: Labels) -> tuple[Array, NDArray[np.int64]]:
        """Return samples in the raw dtype and labels as int64, or refuse them."""
        samples, classes = self.bundle.gate.accept(x), len(self.bundle.manifest.classes)
        labels = require(y, np.ndarray, "the labels", f"an array ({len(samples)},) of integers", LabelError)
        if len(samples) == 0:
            raise InputError("there is nothing to train on", expected="at least one labelled sample", got="none")
        if labels.shape != (len(samples),) or not np.issubdtype(labels.dtype, np.integer):
            raise LabelError("labels do not fit the samples", expected=f"({len(samples)},) integers", got=f"{labels.shape} {labels.dtype}")
        if labels.min() < 0 or labels.max() >= classes:
            raise LabelError("a label is unknown", expected=f"0 to {classes - 1}", got=f"{labels.min()} to {labels.max()}")
        return samples, labels.astype(np.int64)


def _context(bundle: Bundle, chosen: Mapping[str, float]) -> dict[str, Array]:
    """Return what steps read and do not change: the bundle's, with the caller's numbers in their place."""
    brought = bundled_tensors(bundle, CONTEXT_FILE)
    numbers = [name for name, tensor in brought.items() if tensor.ndim == 0]
    for name, value in require(chosen, Mapping, "the context", "numbers by name").items():  # type: ignore[type-abstract]
        if name not in numbers or not math.isfinite(real_number(value, f"the number {name}")):
            raise InputError("the step reads no such number", expected=", ".join(sorted(numbers)), got=f"{name}={value}")
        brought[name] = np.array(value, brought[name].dtype)
    return brought


def _chosen(phases: list[TrainingPhase], name: str | None) -> TrainingPhase:
    """Return the phase of a name, or the only one."""
    names = [phase.name for phase in phases]
    if name is None and len(phases) == 1:
        return phases[0]
    if name not in names:
        raise BundleError("which step to repeat is not clear", expected=" or ".join(names), got=name or "no name")
    return phases[names.index(name)]
