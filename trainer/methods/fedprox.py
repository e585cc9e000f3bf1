"""FedProx: FedAvg whose local steps are pulled back to the global network.

Li et al., "Federated optimization in heterogeneous networks", MLSys 2020, Eq. 2: a client minimises
F_k(w) + mu / 2 * ||w - w_t||^2 with w_t the weights that it was sent. Every client takes all of its steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.methods.base import Batch, Context, Metrics, State, Task
from trainer.methods.checks import check_between
from trainer.methods.classifier_method import LocalTraining
from trainer.methods.fedavg import FedAvgMethod
from trainer.methods.names import GLOBAL, part_of, prefixed
from trainer.optimisation import Proximity, proximal_step


@dataclass(frozen=True)
class FedProx(LocalTraining):
    """Settings of FedProx: those of local training, and the pull.

    Attributes:
        mu: Strength of the pull; 0 makes it FedAvg.
    """

    name: ClassVar[str] = "fedprox"

    mu: float = 0.01

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_between("mu", self.mu, 0.0, 1e6)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedProxMethod:
        """Return the method for this task."""
        return FedProxMethod(self, task, dtype)


class FedProxMethod(FedAvgMethod):
    """FedProx bound to a task."""

    def __init__(self, settings: FedProx, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings

    def context(self, server: State) -> Context:
        """Return the learning rate and the weights that the round began with."""
        return {**super().context(server), **prefixed(GLOBAL, server)}

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step on cross-entropy and pull."""
        proximity = Proximity(self.settings.mu, part_of(context, GLOBAL))
        rate, clip_norm = context["learning_rate"], self.training.clip_norm
        return proximal_step(lambda weights: self.loss(weights, batch), state, proximity, rate, clip_norm)
