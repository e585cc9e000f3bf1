"""What methods share whose devices have unlike networks: networks by group, local SGD with momentum, what stays on a device.

A device's state holds the weights of its own network under ``local.<group>.``, so the names tell a step which network it is
for, and engines never put devices of two groups together. A device's group follows from the number at the end of its id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from edge_runtime.sampling import BatchPolicy, EpochBatches, UniformBatches
from protocol.errors import InputError
from trainer.methods.adaptation import Adaptation
from trainer.methods.base import (
    Batch,
    Context,
    DeviceView,
    LocalStep,
    MethodBase,
    Metrics,
    NewDeviceUses,
    Phase,
    Predictor,
    Repeat,
    State,
    Task,
)
from trainer.methods.checks import check_at_least, check_between, check_local_training
from trainer.methods.names import part_of, prefixed
from trainer.methods.parts import Part
from trainer.models.dropout import dropout_inputs
from trainer.models.mlp import Normalise
from trainer.models.split import SplitClassifier
from trainer.optimisation import cross_entropy
from trainer.optimisers import MOMENTUM, Descent, Sgd

LOCAL, INITIAL = "local.", "initial."
NUMBER = re.compile(r"(\d{1,12})$")


@dataclass(frozen=True)
class UnlikeTraining:
    """Settings of local training of unlike networks.

    Attributes:
        architectures: Models of ``trainer.models.registry``, or ``module:factory``; devices get them in turn, by the number at
            the end of their ids.
        feature_size: Features D between extractor and head, the same for all networks.
        learning_rate: Rate of the local SGD.
        momentum: Share of the last change that is kept, from nothing in every round.
        local_epochs: Passes over the local data in a round; 0 for steps.
        local_steps: Steps in a round where ``local_epochs`` is 0.
        batch_size: Samples in a step.
        clip_norm: Maximum joint norm of the gradients; 0 for no clipping.
        scratch_steps: Steps that a device takes which never took part, from the beginning, on its labels.
    """

    architectures: tuple[str, ...] = ("small-cnn", "residual-cnn", "mlp-128")
    feature_size: int = 64
    learning_rate: float = 0.03
    momentum: float = 0.9
    local_epochs: int = 2
    local_steps: int = 20
    batch_size: int = 20
    clip_norm: float = 5.0
    scratch_steps: int = 200

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        check_local_training(self.learning_rate, self.local_steps, self.batch_size, self.clip_norm)
        check_at_least("local_epochs", self.local_epochs, 0)
        check_at_least("feature_size", self.feature_size, 1)
        check_at_least("scratch_steps", self.scratch_steps, 1)
        check_between("momentum", self.momentum, 0.0, 0.999)
        if not self.architectures:
            raise InputError("setting architectures is empty", expected="one model or more", got="none")

    def draw(self, batch_size: int | None = None, epochs: int | None = None) -> BatchPolicy:
        """Return how batches are drawn, with another batch size or number of passes if given."""
        size, passes = batch_size or self.batch_size, self.local_epochs if epochs is None else epochs
        return EpochBatches(size, passes) if passes else UniformBatches(size)


class Descended(NamedTuple):
    """What a step of descent gives: the trained weights and their momentum, and the loss before it."""

    state: State
    loss: Tensor


class UnlikeMethod(MethodBase):
    """A method for unlike networks, bound to a task. The server keeps what every group begins with."""

    def __init__(self, settings: UnlikeTraining, task: Task, dtype: torch.dtype) -> None:
        self.training = settings
        self.task = task
        self.dtype = dtype
        self.optimiser = Sgd(settings.momentum)
        self.normalise = Normalise(task.minimum, task.maximum).to(dtype)
        self.networks = self._draw_networks(0)
        self.adaptation = Adaptation()
        for name, network in zip(settings.architectures, self.networks, strict=True):
            if dropout_inputs(network.get_submodule("extractor")):
                raise InputError("a fleet of unlike devices has no dropout", expected="a model without it", got=name)

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return that labelled samples are read: a new device trains its own network."""
        return "labels"

    def _draw_networks(self, seed: int) -> nn.ModuleList:
        """Return the network of each group, drawn from a seed; the caller's random state is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape, classes, features = self.task.sample_shape, len(self.task.classes), self.training.feature_size
            names = self.training.architectures
            return nn.ModuleList(SplitClassifier(name, shape, classes, features) for name in names).to(self.dtype)

    def group_index(self, device: str) -> int:
        """Return the number of a device's group, 0-based."""
        found = NUMBER.search(device)
        digest = hashlib.blake2b(device.encode(), digest_size=8).digest()  # for an id without a number
        return (int(found[1]) if found else int.from_bytes(digest, "big")) % len(self.training.architectures)

    def group(self, device: str) -> str:
        """Return the name of a device's group: its architecture."""
        return self.training.architectures[self.group_index(device)]

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return what each group begins with, under ``initial.<group>.``."""
        return {INITIAL + name: tensor.detach() for name, tensor in self._draw_networks(seed).named_parameters()}

    def shared(self, server: State, device: str) -> State:
        """Return the part of the server's state that goes down to a device; nothing unless a subclass says otherwise."""
        return {}

    def downlink(self, server: State, device: str) -> State:
        """Return what the method shares."""
        return self.shared(server, device)

    def private_state(self, server: State, device: str) -> State:
        """Return the group's common beginning and no momentum, less what comes down every round."""
        group = f"{self.group_index(device)}."
        own = prefixed(LOCAL + group, part_of(server, INITIAL + group))
        down = self.shared(server, device)
        return {name: tensor for name, tensor in own.items() if name not in down} | self.optimiser.slots(own)

    def keep(self, end: State, context: Context) -> State:
        """Return the device's own network; its momentum begins anew."""
        return self.still({name: tensor for name, tensor in end.items() if name.startswith((LOCAL, MOMENTUM + LOCAL))})

    def still(self, state: State) -> State:
        """Return a state with all momentum gone."""
        return {name: torch.zeros_like(tensor) if name.startswith(MOMENTUM) else tensor for name, tensor in state.items()}

    def upload(self, end: State, context: Context) -> State:
        """Return nothing."""
        return {}

    def context(self, server: State) -> Context:
        """Return the learning rate, a scalar."""
        return {"learning_rate": torch.tensor(self.training.learning_rate, dtype=self.dtype)}

    def phases(self) -> tuple[Phase, ...]:
        """Return the one phase: local training."""
        return (self.train_phase(),)

    def train_phase(self) -> Repeat:
        """Return local training as the settings say."""
        return Repeat("train_local", self.step, self.training.draw(), None if self.training.local_epochs else self.training.local_steps)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step of the device's network on the method's loss."""
        moved = self.descend(lambda weights: self.local_loss(weights, state, batch, context), state, LOCAL, context["learning_rate"])
        return state | moved.state, {"loss": moved.loss}

    def local_loss(self, weights: State, state: State, batch: Batch, context: Context) -> Tensor:
        """Return what the device's network is trained on: the mean cross-entropy, a scalar.

        Args:
            weights: The network's weights, which are differentiated.
            state: The whole state, constant here.
            batch: Samples, labels, and weights of samples where a batch may be shorter.
            context: What every step of the round reads.
        """
        return cross_entropy(self.local_outputs(weights, batch["samples"])[1], batch["labels"], batch.get("weights"))

    def local_outputs(self, weights: Mapping[str, Tensor], samples: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and logits (B, C) of raw samples (B, *shape) by the network whose weights these are."""
        return self.outputs_of(weights, self.normalise(samples))

    def outputs_of(self, weights: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and logits (B, C) of normalised samples (B, *shape)."""
        group = next(name for name in weights if name.startswith(LOCAL)).split(".")[1]
        outputs: tuple[Tensor, Tensor] = functional_call(self.networks[int(group)], part_of(weights, f"{LOCAL}{group}."), (inputs,))
        return outputs

    def descend(self, loss: Callable[[State], Tensor], state: State, prefix: str, rate: Tensor) -> Descended:
        """Return the weights under a prefix and their momentum after one clipped step down a loss."""
        weights = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
        slots = {name: tensor for name, tensor in state.items() if name.startswith(MOMENTUM + prefix)}
        after, moved, value = Descent(self.optimiser, rate, self.training.clip_norm).step(loss, weights, slots)
        return Descended(after | moved, value)

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the device's own network; one trained from the beginning on labelled support where it never took part."""
        return self.predictor_of(self.trained_state(server, view))

    def trained_state(self, server: State, view: DeviceView) -> State:
        """Return a device's state: what it kept with what comes down, or what it trains from the beginning on its labels."""
        down = self.downlink(server, view.device)
        if view.private:
            return down | view.private
        start = down | self.private_state(server, view.device)
        return self.adaptation.adapt(self.scratch_phase(self.step), start, view, self.context(server))

    def scratch_phase(self, step: LocalStep) -> Repeat:
        """Return the training of a device that never took part."""
        return Repeat("train_from_scratch", step, UniformBatches(self.training.batch_size), self.training.scratch_steps)

    def predictor_of(self, state: State) -> Predictor:
        """Return the classifier of a device with this state."""
        weights = {name: tensor for name, tensor in state.items() if name.startswith(LOCAL)}
        return lambda samples: self.local_outputs(weights, samples)[1]

    def parts(self, server: State) -> tuple[Part, ...]:
        """Refuse: no classifier is shared that a new device could run."""
        hint = "train hyperfedzero or fedavg, whose classifiers run on every device"
        raise InputError("this method shares no classifier", expected="a method that shares one", got=type(self).__name__, hint=hint)

    def sizes(self, server: State) -> dict[str, int]:
        """Return the number of values that go down to a device, and the weights of the largest network."""
        largest = max(sum(each.numel() for each in network.parameters()) for network in self.networks)
        travels = sum(tensor.numel() for tensor in self.downlink(server, "device-0").values())
        return {"parameters": travels, "classifier_parameters": largest}
