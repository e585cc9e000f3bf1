"""FedGH: a global head, trained on the server with the devices' class prototypes (Yi et al., ACM MM 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad

from trainer.aggregation import client_states
from trainer.methods.base import Context, State, Task, Updates
from trainer.methods.checks import check_at_least, check_positive
from trainer.methods.class_means import COUNTS, MEANS, ClassMeansMethod, ClassMeansTraining
from trainer.methods.lg_fedavg import HEAD, SharedHeadMethod
from trainer.methods.names import part_of, prefixed


@dataclass(frozen=True)
class FedGH(ClassMeansTraining):
    """Settings of FedGH; ``pull`` is not used, as no term draws features to prototypes.

    Attributes:
        server_steps: Steps of the head on the server after each round, each on all prototypes.
        server_rate: Their rate.
    """

    name: ClassVar[str] = "fedgh"

    server_steps: int = 20
    server_rate: float = 0.03

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_at_least("server_steps", self.server_steps, 1)
        check_positive("server_rate", self.server_rate)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedGHMethod:
        """Return the method for this task."""
        return FedGHMethod(self, task, dtype)


class FedGHMethod(SharedHeadMethod, ClassMeansMethod):
    """FedGH bound to a task."""

    def __init__(self, settings: FedGH, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return what each group begins with, and the head that all share."""
        server = super().initial_state(seed, enrolled)
        return {name: tensor for name, tensor in server.items() if name not in (MEANS, COUNTS)}

    def context(self, server: State) -> Context:
        """Return the learning rate, a scalar."""
        return {"learning_rate": torch.tensor(self.training.learning_rate, dtype=self.dtype)}

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the head after some steps on every device's prototypes, each weighing as its class has samples there."""
        means = torch.cat([state[MEANS] for state in client_states(updates)]).to(torch.float64)  # (M * C, D)
        counts = torch.cat([state[COUNTS] for state in client_states(updates)]).to(torch.float64)  # (M * C,)
        labels = torch.arange(len(self.task.classes), device=means.device).repeat(len(updates.devices))  # (M * C,)
        head = {name: tensor.double() for name, tensor in part_of(server, HEAD).items()}
        for _ in range(self.settings.server_steps):
            slopes = grad(_head_loss)(head, means, labels, counts)
            head = {name: tensor - self.settings.server_rate * slopes[name] for name, tensor in head.items()}
        return server | prefixed(HEAD, {name: tensor.to(self.dtype) for name, tensor in head.items()})


def _head_loss(head: State, means: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return the cross-entropy of a head on prototypes (P, D) of classes (P,), weighted by counts (P,), a scalar."""
    logits = means @ head["weight"].T + head["bias"]  # (P, C)
    chosen = torch.log_softmax(logits, dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)  # (P,)
    return -(chosen * counts).sum() / counts.sum().clamp(min=1)
