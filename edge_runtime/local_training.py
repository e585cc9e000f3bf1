"""A bundle's local steps on a device's own data, as its manifest declares them: the draws of the simulator, no method code."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import Bundle
from edge_runtime.sampling import ClassIndex, DrawKey
from edge_runtime.training_phase import STATE_FILE, bundled_tensors, training_phases
from protocol.errors import InputError, NumericalError
from protocol.tensors import Array


class LocalTraining:
    """The local training of a method.

    Args:
        bundle: A bundle that was exported with its training steps.

    Raises:
        BundleError: It has none, or a phase that this version cannot do.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._phases = training_phases(bundle)

    def initial_state(self) -> dict[str, Array]:
        """Return the state that the bundle brings: name -> tensor."""
        return bundled_tensors(self._bundle, STATE_FILE)

    def run(
        self, state: Mapping[str, Array], context_scalars: Mapping[str, float], key: DrawKey, samples: Array, labels: NDArray[np.int64]
    ) -> tuple[dict[str, Array], dict[str, float]]:
        """Return the state after all phases, and the mean of each metric.

        Args:
            state: Name -> tensor before the first step.
            context_scalars: What every step reads, such as ``learning_rate``.
            key: What the draws depend on.
            samples: Raw samples, (N, *shape).
            labels: Class indices, (N,) int64.

        Raises:
            InputError: No sample, or another state than the graphs have.
            NumericalError: Training came to NaN or infinity.
        """
        if len(labels) == 0:
            raise InputError("there is nothing to train on", expected="at least one labelled sample", got="none")
        current, index, metrics = dict(state), ClassIndex(labels), dict[str, list[float]]()
        context = {name: np.array(value, np.float32) for name, value in context_scalars.items()}
        for phase in self._phases:
            steps = phase.steps(len(labels))
            drawn = phase.draw(key, index, steps)
            for step in range(steps):
                current, figures = phase.run(current, context, phase.batch(drawn, step, samples, labels))
                for name, value in figures.items():
                    metrics.setdefault(name, []).append(value)
        for name, tensor in current.items():
            if not np.isfinite(tensor).all():
                raise NumericalError(f"local training diverged at {name}", hint="lower learning_rate or clip_norm")
        return current, {name: float(np.mean(values)) for name, values in metrics.items()}
