"""The contract of a federated method: a pure local step, declared phases, aggregation, a predictor, exported parts.

A method has no training loop. It says what goes down, which steps a client takes on which draws, and how updates
become the next server state; engines do the rest. Trees are flat: a name and a tensor each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from edge_runtime.sampling import BatchPolicy
from trainer.methods.parts import Part, PartTensor

State: TypeAlias = dict[str, Tensor]
Batch: TypeAlias = Mapping[str, Tensor]
Context: TypeAlias = Mapping[str, Tensor]
Metrics: TypeAlias = dict[str, Tensor]
LocalStep: TypeAlias = Callable[[State, Batch, Context], tuple[State, Metrics]]


@dataclass(frozen=True)
class Task:
    """What a method must know of the data.

    Attributes:
        sample_shape: Shape of one raw sample.
        dtype: numpy name of the raw dtype.
        minimum: Smallest raw value.
        maximum: Largest raw value.
        classes: Class names in index order, C of them.
    """

    sample_shape: tuple[int, ...]
    dtype: str
    minimum: float
    maximum: float
    classes: tuple[str, ...]

    def samples_tensor(self) -> PartTensor:
        """Return the raw samples as the input of a part."""
        return PartTensor("samples", self.dtype, ("batch", *self.sample_shape), "raw samples", self.minimum, self.maximum)


@dataclass(frozen=True)
class RandomInput:
    """A standard normal input of a step: its name in the batch and its shape for one step."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Repeat:
    """A phase: ``count`` times the same step on fresh batches.

    Attributes:
        step_name: Name of the step in manifests and metrics.
        step: (state, batch, context) -> (state, metrics), pure; the batch holds ``samples`` (B, *shape) raw,
            ``labels`` (B,) int64 and the random inputs.
        draw: Which samples each step sees.
        count: Number of steps.
        random_inputs: Random numbers that the step takes as inputs.
    """

    step_name: str
    step: LocalStep
    draw: BatchPolicy
    count: int
    random_inputs: tuple[RandomInput, ...] = ()


@dataclass(frozen=True)
class Updates:
    """What the clients of one round send up, stacked in ascending order of device id.

    Attributes:
        devices: Device ids, M of them, ascending.
        state: Each tensor as (M, *shape).
        sample_counts: Training samples of each device, (M,) int64.
    """

    devices: tuple[str, ...]
    state: State
    sample_counts: Tensor


class Predictor(Protocol):
    """A trained method at work on one device."""

    def logits(self, support: Tensor, query: Tensor) -> Tensor:
        """Return logits (B, C) of raw query samples (B, *shape), given raw unlabelled support samples (N, *shape)."""


class Method(Protocol):
    """A method bound to a task."""

    def initial_state(self, seed: int) -> State:
        """Return the server's state before the first round; the same seed gives the same state."""

    def downlink(self, server: State, device: str) -> State:
        """Return the state that a device starts the round from."""

    def phases(self) -> tuple[Repeat, ...]:
        """Return what a client does in a round, in order."""

    def context(self) -> Context:
        """Return the scalars that every step of the round reads, such as the learning rate."""

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the next server state."""

    def predictor(self, server: State) -> Predictor:
        """Return the predictor for participants and new devices; it uses unlabelled samples only."""

    def parts(self, server: State) -> tuple[Part, ...]:
        """Return what a bundle needs."""

    def sizes(self, server: State) -> dict[str, int]:
        """Return the parameters that travel (``parameters``) and those of the network that classifies (``classifier_parameters``)."""


class MethodSettings(Protocol):
    """The settings of a method: a frozen dataclass that can be bound to a task."""

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> Method:
        """Return the method for data of this kind, computing in ``dtype``."""
