"""The contract of a federated method: what goes down, a pure local step, declared phases, what goes up, aggregation.

A method has no training loop. It says what a device starts from, which steps it takes on which draws, what it sends and
keeps, and how updates become the next server state; engines do the rest. Trees are flat: a name and a tensor each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from edge_runtime.sampling import BatchPolicy
from trainer.methods.parts import Part, PartTensor

State: TypeAlias = dict[str, Tensor]
Batch: TypeAlias = Mapping[str, Tensor]
Context: TypeAlias = Mapping[str, Tensor]
Metrics: TypeAlias = dict[str, Tensor]
LocalStep: TypeAlias = Callable[[State, Batch, Context], tuple[State, Metrics]]
Predictor: TypeAlias = Callable[[Tensor], Tensor]  # raw samples (B, *shape) -> logits (B, C)

# What personalisation on a new device reads: nothing at all, its unlabelled samples, or labelled ones and local steps.
NewDeviceUses = Literal["nothing", "samples", "labels"]


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
    """A random input of a step: its name in the batch and its shape for one step.

    ``normal`` numbers are standard normal and floating; ``bytes`` are uniform uint8, for dropout masks.
    """

    name: str
    shape: tuple[int, ...]
    kind: Literal["normal", "bytes"] = "normal"


@dataclass(frozen=True)
class Repeat:
    """A phase: the same step on fresh batches, again and again.

    Attributes:
        step_name: Name of the step in manifests and metrics.
        step: (state, batch, context) -> (state, metrics), pure; the batch holds ``samples`` (B, *shape) raw,
            ``labels`` (B,) int64, the random inputs, and ``weights`` (B,) where a batch may be shorter than B: 1 for a
            sample, 0 for padding. Metrics hold ``loss``, a scalar.
        draw: Which samples each step sees.
        count: Number of steps; None where the policy says how many a device's data make.
        random_inputs: Random numbers that the step takes as inputs.
    """

    step_name: str
    step: LocalStep
    draw: BatchPolicy
    count: int | None
    random_inputs: tuple[RandomInput, ...] = ()

    def steps(self, samples: int) -> int:
        """Return the number of steps for a device with so many samples."""
        return self.draw.steps(samples) if self.count is None else self.count


@dataclass(frozen=True)
class Once:
    """A phase that runs once on all of a device's data: a statistic, a choice of experts.

    Attributes:
        step_name: Name in manifests and metrics.
        function: (state, samples (N, *shape) raw, labels (N,), context) -> state.
    """

    step_name: str
    function: Callable[[State, Tensor, Tensor, Context], State]


Phase: TypeAlias = Repeat | Once


@dataclass(frozen=True)
class Updates:
    """What the clients of one round send up, in ascending order of device id.

    Attributes:
        devices: Device ids, M of them, ascending.
        chunks: Stacked tensors of consecutive devices: (m, *shape) each, the m adding up to M.
        sample_counts: Training samples of each device, (M,) int64.
    """

    devices: tuple[str, ...]
    chunks: tuple[State, ...]
    sample_counts: Tensor

    @property
    def state(self) -> State:
        """Return each tensor as (M, *shape); a copy where there is more than one chunk."""
        if len(self.chunks) == 1:
            return self.chunks[0]
        return {name: torch.cat([chunk[name] for chunk in self.chunks]) for name in self.chunks[0]}


@dataclass(frozen=True, eq=False)
class DeviceView:
    """What a method may look at to make a device's predictor.

    Attributes:
        device: Device id.
        support: Local samples, raw, (N, *shape).
        labels: Their classes, (N,) int64; None for a new device unless the method declares that it uses labels.
        private: What the device kept from training; empty for a new device.
        seed: Seed of the run, for draws of local steps.
    """

    device: str
    support: Tensor
    labels: Tensor | None
    private: State
    seed: int


@dataclass(frozen=True, eq=False)
class PriorPredictor:
    """A predictor that knows the device's class prior apart from the scores, so that another estimate can take its place.

    Attributes:
        scores: Raw samples (B, *shape) -> logits (B, C) under equal classes.
        log_prior: Logarithms of the class prior, (C,).
    """

    scores: Predictor
    log_prior: Tensor

    def __call__(self, samples: Tensor) -> Tensor:
        """Return logits (B, C) under the prior."""
        return self.scores(samples) + self.log_prior


class Method(Protocol):
    """A method bound to a task. ``MethodBase`` has the answers that most methods share."""

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return what personalisation on a new device reads."""

    def group(self, device: str) -> str:
        """Return the name of the group of like devices that a device belongs to; empty where all are alike."""

    def enrol(self, samples: Tensor, labels: Tensor) -> State:
        """Return what a device tells the server once, before the first round, from samples (N, *shape) and labels (N,)."""

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return the server's state before the first round; the same seed gives the same state.

        Args:
            seed: Seed of the run.
            enrolled: What each participant told on enrolment, by device id.
        """

    def downlink(self, server: State, device: str) -> State:
        """Return what the server sends to a device at the start of a round: a part of the device's state."""

    def private_state(self, server: State, device: str) -> State:
        """Return the part of a device's state that never travels, as it is before the device's first round."""

    def phases(self) -> tuple[Phase, ...]:
        """Return what a client does in a round, in order."""

    def context(self, server: State) -> Context:
        """Return what every step of a round reads and no step changes: the learning rate, the global weights."""

    def upload(self, end: State, context: Context) -> State:
        """Return what goes up, given states after the phases, stacked (M, *shape)."""

    def keep(self, end: State, context: Context) -> State:
        """Return the private part of states after the phases, stacked (M, *shape)."""

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the next server state."""

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the classifier of one device; of a new device it uses no more than ``new_device_uses`` says."""

    def device_embedding(self, server: State, support: Tensor) -> Tensor | None:
        """Return the embedding (E,) of a device's support samples (N, *shape), or None for a method without one."""

    def parts(self, server: State) -> tuple[Part, ...]:
        """Return what a bundle needs.

        Raises:
            InputError: The method has nothing that a new device could run.
        """

    def trained_part(self) -> Part | None:
        """Return the classifier whose weights are a device's own state after local steps, or None where the state is no classifier."""

    def sizes(self, server: State) -> dict[str, int]:
        """Return the parameters that travel (``parameters``) and those of the network that classifies (``classifier_parameters``)."""


class MethodBase:
    """What most methods answer: no enrolment, everything travels, nothing is private."""

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return that a new device's data are not read."""
        return "nothing"

    def group(self, device: str) -> str:
        """Return that all devices are alike."""
        return ""

    def enrol(self, samples: Tensor, labels: Tensor) -> State:
        """Return nothing."""
        return {}

    def downlink(self, server: State, device: str) -> State:
        """Return the server's state, the same for every device."""
        return server

    def private_state(self, server: State, device: str) -> State:
        """Return nothing."""
        return {}

    def upload(self, end: State, context: Context) -> State:
        """Return the whole state."""
        return end

    def keep(self, end: State, context: Context) -> State:
        """Return nothing."""
        return {}

    def device_embedding(self, server: State, support: Tensor) -> Tensor | None:
        """Return None: the method has no embedding."""
        return None

    def trained_part(self) -> Part | None:
        """Return None: the state after local steps is no classifier."""
        return None


class MethodSettings(Protocol):
    """The settings of a method: a frozen dataclass that can be bound to a task."""

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> Method:
        """Return the method for data of this kind, computing in ``dtype``."""
