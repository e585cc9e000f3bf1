"""A bundle's local steps on a device's own data, as its manifest declares them: the draws of the simulator, no method code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import Bundle
from edge_runtime.sampling import (
    PADDING,
    BatchPolicy,
    ClassIndex,
    DrawKey,
    EpisodeBatches,
    EpochBatches,
    UniformBatches,
    byte_inputs,
    normal_inputs,
)
from protocol.errors import BundleError, InputError, NumericalError
from protocol.tensors import Array, TensorLimits, decode_tensors

STATE_FILE = "tensors/state.safetensors"
PREFIX, STATE, NEXT_STATE, BATCH, CONTEXT, METRICS = "train_", "state.", "next_state.", "batch.", "context.", "metrics."
POLICIES: Mapping[str, type[Any]] = {each.__name__: each for each in (UniformBatches, EpisodeBatches, EpochBatches)}


class LocalTraining:
    """The local training of a method.

    Args:
        bundle: A bundle that was exported with its training steps.

    Raises:
        BundleError: It has none, or a phase that this version cannot do.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        phases: tuple[Any, ...] = bundle.manifest.method.phases
        self._phases = [(_graph_of(bundle, phase), phase, _policy_of(phase)) for phase in phases]
        if not self._phases:
            raise _no_training()

    def initial_state(self) -> dict[str, Array]:
        """Return the state that the bundle brings: name -> tensor."""
        return decode_tensors(self._bundle._verified.files[STATE_FILE], TensorLimits(magnitude=None))  # noqa: SLF001

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
        for graph, phase, policy in self._phases:
            steps = policy.steps(len(labels)) if phase["count"] is None else int(phase["count"])
            batches = _batches(phase, policy, key, index, steps) | {"labels": labels}
            for step in range(steps):
                current, figures = self._step(graph, current, context_scalars, _batch(batches, samples, step))
                for name, value in figures.items():
                    metrics.setdefault(name, []).append(value)
        for name, tensor in current.items():
            if not np.isfinite(tensor).all():
                raise NumericalError(f"local training diverged at {name}", hint="lower learning_rate or clip_norm")
        return current, {name: float(np.mean(values)) for name, values in metrics.items()}

    def _step(
        self, graph: str, state: Mapping[str, Array], scalars: Mapping[str, float], batch: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, float]]:
        """Return state and metrics after one step."""
        spec, session = self._bundle.manifest.graphs[graph], self._bundle.session(graph)
        feeds: dict[str, Array] = {f"{STATE}{name}": tensor for name, tensor in state.items()}
        feeds |= {f"{BATCH}{name}": tensor for name, tensor in batch.items()}
        feeds |= {f"{CONTEXT}{name}": np.array(value, np.float32) for name, value in scalars.items()}
        wanted = {each.name for each in spec.inputs}
        outputs = dict(zip((each.name for each in spec.outputs), session.run({n: feeds[n] for n in feeds if n in wanted}), strict=True))
        after = {name.removeprefix(NEXT_STATE): tensor for name, tensor in outputs.items() if name.startswith(NEXT_STATE)}
        figures = {name.removeprefix(METRICS): float(value) for name, value in outputs.items() if name.startswith(METRICS)}
        return {**state, **after}, figures


def _graph_of(bundle: Bundle, phase: Mapping[str, Any]) -> str:
    """Return the entry point of a phase."""
    name = PREFIX + str(phase.get("repeat", "")).removeprefix(PREFIX)
    if name not in bundle.manifest.graphs:
        raise _no_training()
    return name


def _policy_of(phase: Mapping[str, Any]) -> BatchPolicy:
    """Return the rule that picks the samples of a phase."""
    draw = dict(phase["draw"])
    name = str(draw.pop("policy"))
    if name not in POLICIES:
        raise BundleError("a training phase draws in an unknown way", expected=" or ".join(POLICIES), got=name, hint="update this program")
    policy: BatchPolicy = POLICIES[name](**draw)
    return policy


def _batches(phase: Mapping[str, Any], policy: BatchPolicy, key: DrawKey, index: ClassIndex, steps: int) -> dict[str, Array]:
    """Return what is drawn for all steps: ``places`` (S, B) int64, and random inputs (S, *shape)."""
    drawn: dict[str, Array] = {"places": policy.draw(key, index, steps)}
    for name, shape in phase.get("normal_inputs", {}).items():
        drawn[name] = normal_inputs(key, name, (steps, *shape))
    for name, shape in phase.get("bytes_inputs", {}).items():
        drawn[name] = byte_inputs(key, name, (steps, *shape))
    return drawn


def _batch(drawn: Mapping[str, Array], samples: Array, step: int) -> dict[str, Array]:
    """Return the batch of one step."""
    places: NDArray[np.int64] = drawn["places"][step].astype(np.int64)  # (B,)
    real = places != PADDING
    chosen = np.where(real, places, 0)
    batch = {name: tensor[step] for name, tensor in drawn.items() if name not in {"places", "labels"}}
    batch |= {"samples": samples[chosen], "labels": drawn["labels"][chosen]}
    if (drawn["places"] == PADDING).any():
        batch["weights"] = real.astype(np.float32)
    return batch


def _no_training() -> BundleError:
    """Return the error of a bundle without training steps."""
    return BundleError("this bundle cannot train", expected="the method's local steps", hint="export it with --training")
