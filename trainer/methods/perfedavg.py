"""Per-FedAvg: a network from which one gradient step on a device's own data leads to a good one.

Fallah, Mokhtari and Ozdaglar, "Personalized federated learning with theoretical guarantees: a model-agnostic
meta-learning approach", NeurIPS 2020, Algorithm 1 in its first-order form: the gradient on one batch at the point to
which a step on another, independent batch led, applied to the point before that step. Prediction takes the step on the
device's labelled training data. Without labels the weights are used as they are, which is not what they were trained
for: gACC tells how they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.func import grad_and_value

from edge_runtime.sampling import BatchPolicy, UniformBatches
from protocol.errors import InputError
from trainer.methods.adaptation import Adaptation
from trainer.methods.base import Batch, Context, DeviceView, Metrics, NewDeviceUses, Phase, Predictor, State, Task
from trainer.methods.checks import check_at_least, check_positive
from trainer.methods.classifier_method import LocalTraining
from trainer.methods.fedavg import FedAvgMethod
from trainer.methods.parts import Part
from trainer.optimisation import descend, sgd_step


@dataclass(frozen=True)
class PerFedAvg(LocalTraining):
    """Settings of Per-FedAvg; ``learning_rate`` is beta, that of the step which stays.

    Attributes:
        inner_rate: Rate alpha of the step that leads to the point of the gradient, and of the steps at prediction.
        adaptation_steps: Steps that a device takes before it predicts.
    """

    name: ClassVar[str] = "perfedavg"

    inner_rate: float = 0.03
    adaptation_steps: int = 1

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_positive("inner_rate", self.inner_rate)
        check_at_least("adaptation_steps", self.adaptation_steps, 1)
        if self.local_epochs:
            hint = "set local_steps: each step needs two independent batches"
            raise InputError("perfedavg takes no passes over the data", expected="local_epochs 0", got=self.local_epochs, hint=hint)

    def draw(self) -> BatchPolicy:
        """Return how batches are drawn: with replacement, two at a time."""
        return UniformBatches(2 * self.batch_size)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> PerFedAvgMethod:
        """Return the method for this task."""
        return PerFedAvgMethod(self, task, dtype)


class PerFedAvgMethod(FedAvgMethod):
    """Per-FedAvg bound to a task."""

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return that labelled samples are read."""
        return "labels"

    def __init__(self, settings: PerFedAvg, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings
        self.adaptation = Adaptation()

    def context(self, server: State) -> Context:
        """Return both learning rates, scalars."""
        return {**super().context(server), "inner_rate": torch.tensor(self.settings.inner_rate, dtype=self.dtype)}

    def phases(self) -> tuple[Phase, ...]:
        """Return the one phase: steps on double batches."""
        return (self.train_phase(self.outer_step),)

    def outer_step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one first-order step, and the loss at the moved point."""
        half = batch["labels"].shape[0] // 2
        first, second = ({name: tensor[place] for name, tensor in batch.items()} for place in (slice(half), slice(half, None)))
        moved, _ = self.inner_step(state, first, context)
        gradients, value = grad_and_value(lambda weights: self.loss(weights, second))(moved)
        return descend(state, gradients, context["learning_rate"], self.training.clip_norm), {"loss": value}

    def inner_step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step with the inner rate."""
        return sgd_step(lambda weights: self.loss(weights, batch), state, context["inner_rate"], self.training.clip_norm)

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the network after its steps on the device's support; where that has no labels, the weights as they are."""
        chosen = self.settings
        phase = self.repeat("adapt", self.inner_step, UniformBatches(chosen.batch_size), chosen.adaptation_steps)
        return self.predictor_of(self.adaptation.adapt(phase, server, view, self.context(server)))

    def trained_part(self) -> Part | None:
        """Return None: the state is where a classifier begins from."""
        return None
