"""FedAvg: one network for everybody (McMahan et al., "Communication-efficient learning of deep networks", 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.aggregation import weighted_mean
from trainer.methods.base import Batch, Context, Metrics, Phase, State, Task, Updates
from trainer.methods.classifier_method import ClassifierMethod, LocalTraining
from trainer.methods.parts import Part
from trainer.optimisation import sgd_step


@dataclass(frozen=True)
class FedAvg(LocalTraining):
    """Settings of FedAvg: those of local training."""

    name: ClassVar[str] = "fedavg"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedAvgMethod:
        """Return the method for this task."""
        return FedAvgMethod(self, task, dtype)


class FedAvgMethod(ClassifierMethod):
    """FedAvg bound to a task."""

    def phases(self) -> tuple[Phase, ...]:
        """Return the one phase: local SGD."""
        return (self.train_phase(self.step),)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step of SGD on the cross-entropy."""
        return sgd_step(lambda weights: self.loss(weights, batch), state, context["learning_rate"], self.training.clip_norm)

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the mean weighted by sample counts."""
        return weighted_mean(updates)

    def trained_part(self) -> Part | None:
        """Return the network with a device's own weights."""
        return self.trained_classifier()
