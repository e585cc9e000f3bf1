"""A bundle's local steps on a device's own data: the same draws as in the simulator, the same end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import Bundle
from edge_runtime.sampling import ClassIndex, DrawKey, UniformBatches
from protocol.errors import BundleError
from protocol.tensors import Array, TensorLimits, decode_tensors

STATE_FILE = "tensors/state.safetensors"


class LocalTraining:
    """Local training by one phase of uniform batches."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        graphs = [name for name in bundle.manifest.graphs if name.startswith("train_")]
        if len(graphs) != 1:
            raise BundleError("this bundle cannot train", expected="one training graph", got=len(graphs), hint="export it with --training")
        self._graph = graphs[0]

    def initial_state(self) -> dict[str, Array]:
        """Return the state that the bundle brings."""
        return decode_tensors(self._bundle._verified.files[STATE_FILE], TensorLimits(magnitude=None))  # noqa: SLF001

    def run(
        self,
        state: Mapping[str, Array],
        context_scalars: Mapping[str, float],
        key: DrawKey,
        samples: Array,
        labels: NDArray[np.int64],
        *,
        budget: object = None,
    ) -> tuple[dict[str, Array], dict[str, float]]:
        """Return the state after the phase, and the mean loss."""
        session = self._bundle.session(self._graph)
        (phase,) = self._bundle.manifest.method.phases
        steps, draw = int(phase["count"]), UniformBatches(int(phase["draw"]["batch_size"]))
        places = draw.draw(key, ClassIndex(labels), steps)  # (S, B)
        current, losses = dict(state), []
        fixed = {f"context.{name}": np.array(value, np.float32) for name, value in context_scalars.items()}
        names = [output.name for output in self._bundle.manifest.graphs[self._graph].outputs]
        for step in range(steps):
            feeds = {f"state.{name}": tensor for name, tensor in current.items()} | fixed
            feeds |= {"batch.samples": samples[places[step]], "batch.labels": labels[places[step]]}
            outputs = dict(zip(names, session.run(feeds), strict=True))
            current = {name.removeprefix("next_state."): tensor for name, tensor in outputs.items() if name.startswith("next_state.")}
            losses.append(float(outputs["metrics.loss"]))
        return current, {"loss": float(np.mean(losses))}
