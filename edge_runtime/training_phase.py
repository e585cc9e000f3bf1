"""One phase of local training: its exported step, the draws that the manifest declares for it, and one call of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import TRAINING, Bundle
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
from protocol.errors import BundleError
from protocol.tensors import Array, TensorLimits, decode_tensors

STATE_FILE, CONTEXT_FILE = "tensors/state.safetensors", "tensors/context.safetensors"
STATE, NEXT_STATE, BATCH, CONTEXT, METRICS = "state.", "next_state.", "batch.", "context.", "metrics."
POLICIES: Mapping[str, type[Any]] = {each.__name__: each for each in (UniformBatches, EpisodeBatches, EpochBatches)}
PLACES = "places"

State = Mapping[str, Array]


class TrainingPhase:
    """A step that is repeated.

    Args:
        bundle: A bundle that was exported with its training steps.
        declared: The phase as the manifest has it.

    Raises:
        BundleError: The bundle lacks the step, or this version cannot do the phase.
    """

    def __init__(self, bundle: Bundle, declared: Mapping[str, Any]) -> None:
        if "once" in declared:
            what = f"the phase {declared['once']} of this method needs the method's own code"
            raise BundleError(what, expected="phases that repeat a step", hint="train this method in the simulator")
        self.name = TRAINING + str(declared.get("repeat", "")).removeprefix(TRAINING)
        if self.name not in bundle.manifest.graphs:
            raise BundleError("this bundle cannot train", expected="the method's local steps", hint="export it with --training")
        self._declared = declared
        self._policy = _policy_of(declared)
        self._spec = bundle.manifest.graphs[self.name]
        self._session = bundle.session(self.name)
        self._wanted = [each.name for each in self._spec.inputs]

    def steps(self, samples: int) -> int:
        """Return the steps of one round for so many samples."""
        count = self._declared["count"]
        return self._policy.steps(samples) if count is None else int(count)

    def pass_steps(self, samples: int) -> int:
        """Return the steps of which one draw must hold whole multiples; see ``BatchPolicy``."""
        return self._policy.pass_steps(samples)

    def draw(self, key: DrawKey, index: ClassIndex, steps: int) -> dict[str, Array]:
        """Return what is drawn for some steps: ``places`` (S, B) int64, and random inputs (S, *shape)."""
        drawn: dict[str, Array] = {PLACES: self._policy.draw(key, index, steps)}
        for kind, numbers in (("normal_inputs", normal_inputs), ("bytes_inputs", byte_inputs)):
            for name, shape in self._declared.get(kind, {}).items():
                drawn[name] = numbers(key, name, (steps, *shape))
        return drawn

    def batch(self, drawn: Mapping[str, Array], step: int, samples: Array, labels: NDArray[np.int64]) -> dict[str, Array]:
        """Return the batch of one of the drawn steps, of samples (N, *shape) and labels (N,)."""
        places = drawn[PLACES][step].astype(np.int64)  # (B,)
        real = places != PADDING  # (B,); the batch is shorter by the others, which the mean over it is then too
        batch = {name: tensor[step][real] for name, tensor in drawn.items() if name != PLACES}
        batch |= {"samples": samples[places[real]], "labels": labels[places[real]]}
        if BATCH + "weights" in self._wanted:
            batch["weights"] = np.ones(int(real.sum()), np.float32)
        return batch

    def whole_batch(self, key: DrawKey, index: ClassIndex, samples: Array, labels: NDArray[np.int64]) -> dict[str, Array]:
        """Return samples (N, *shape) and labels (N,) as one batch, with random inputs of the first step of a draw."""
        drawn = self.draw(key, index, 1)
        batch = {name: np.resize(tensor[0], (len(labels), *tensor.shape[2:])) for name, tensor in drawn.items() if name != PLACES}
        batch |= {"samples": samples, "labels": labels}
        if BATCH + "weights" in self._wanted:
            batch["weights"] = np.ones(len(labels), np.float32)
        return batch

    def run(self, state: State, context: Mapping[str, Array], batch: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, float]]:
        """Return state and metrics after one step.

        Raises:
            InputError: ONNX Runtime refuses the inputs: a name is missing, a shape or dtype is another.
        """
        feeds: dict[str, Array] = {f"{STATE}{name}": tensor for name, tensor in state.items()}
        feeds |= {f"{BATCH}{name}": tensor for name, tensor in batch.items()}
        feeds |= {f"{CONTEXT}{name}": tensor for name, tensor in context.items()}
        values = self._session.run({name: feeds[name] for name in self._wanted if name in feeds})
        outputs = dict(zip((each.name for each in self._spec.outputs), values, strict=True))
        after = {name.removeprefix(NEXT_STATE): tensor for name, tensor in outputs.items() if name.startswith(NEXT_STATE)}
        figures = {name.removeprefix(METRICS): float(value) for name, value in outputs.items() if name.startswith(METRICS)}
        return {**state, **after}, figures


def training_phases(bundle: Bundle) -> list[TrainingPhase]:
    """Return all phases of a bundle's local training, in order.

    Raises:
        BundleError: There is none, or one that this version cannot do.
    """
    phases = [TrainingPhase(bundle, declared) for declared in bundle.manifest.method.phases if isinstance(declared, Mapping)]
    if not phases:
        raise BundleError("this bundle cannot train", expected="the method's local steps", hint="export it with --training")
    return phases


def bundled_tensors(bundle: Bundle, path: str) -> dict[str, Array]:
    """Return the tensors of one of a bundle's files.

    Raises:
        BundleError: The bundle has no such file.
    """
    data = bundle.file(path)
    if data is None:
        raise BundleError(f"this bundle lacks {path}", hint="export it again with --training")
    return decode_tensors(data, TensorLimits(magnitude=None))


def _policy_of(declared: Mapping[str, Any]) -> BatchPolicy:
    """Return the rule that picks the samples of a phase."""
    draw = dict(declared["draw"])
    name = str(draw.pop("policy"))
    if name not in POLICIES:
        raise BundleError("a training phase draws in an unknown way", expected=" or ".join(POLICIES), got=name, hint="update this program")
    policy: BatchPolicy = POLICIES[name](**draw)
    return policy
