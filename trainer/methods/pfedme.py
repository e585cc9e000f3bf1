"""pFedMe: personal networks as the proximal points of local ones, by Moreau envelopes.

Dinh, Tran and Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020, Algorithm 1: for each batch

    theta ~ argmin F_k(theta; batch) + lambda / 2 * ||theta - w||^2     by K gradient steps
    w <- w - eta * lambda * (w - theta)

and on the server w <- (1 - beta) * w + beta * mean of the clients' w. The clients' means are weighted by sample counts here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trainer.aggregation import weighted_mean
from trainer.methods.base import Batch, Context, DeviceView, Metrics, Once, Phase, Predictor, State, Task, Updates
from trainer.methods.checks import check_at_least, check_between, check_positive
from trainer.methods.classifier_method import LocalTraining
from trainer.methods.fedavg import FedAvgMethod
from trainer.methods.names import PERSONAL, part_of, prefixed, without
from trainer.methods.parts import Part
from trainer.optimisation import Proximity, proximal_step


@dataclass(frozen=True)
class PFedMe(LocalTraining):
    """Settings of pFedMe; ``learning_rate`` is eta, that of the local weights w.

    Attributes:
        pull: Strength lambda with which personal weights are pulled to the local ones.
        personal_rate: Learning rate of the personal weights theta.
        inner_steps: Steps K of the personal weights on each batch.
        server_rate: Beta, the share of the way to the clients' mean that the server goes.
    """

    name: ClassVar[str] = "pfedme"

    learning_rate: float = 0.05
    pull: float = 15.0
    personal_rate: float = 0.05
    inner_steps: int = 5
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        for name in ("pull", "personal_rate"):
            check_positive(name, getattr(self, name))
        check_at_least("inner_steps", self.inner_steps, 1)
        check_between("server_rate", self.server_rate, 0.0, 10.0)
        check_between("learning_rate times pull", self.learning_rate * self.pull, 0.0, 1.0)  # beyond 1, w overshoots theta

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> PFedMeMethod:
        """Return the method for this task."""
        return PFedMeMethod(self, task, dtype)


class PFedMeMethod(FedAvgMethod):
    """pFedMe bound to a task."""

    def __init__(self, settings: PFedMe, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings

    def private_state(self, server: State, device: str) -> State:
        """Return personal weights that begin as the global ones."""
        return prefixed(PERSONAL, server)

    def context(self, server: State) -> Context:
        """Return both learning rates, scalars."""
        return {**super().context(server), "personal_rate": torch.tensor(self.settings.personal_rate, dtype=self.dtype)}

    def phases(self) -> tuple[Phase, ...]:
        """Return two phases: personal weights begin at the received ones, then both take their steps."""
        return (Once("start_from_global", self.start_from_global), self.train_phase(self.envelope_step))

    def start_from_global(self, state: State, samples: Tensor, labels: Tensor, context: Context) -> State:
        """Return the state with personal weights equal to the received ones."""
        received = without(state, PERSONAL)
        return received | prefixed(PERSONAL, {name: tensor.clone() for name, tensor in received.items()})

    def envelope_step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after K personal steps on one batch and one local step, and the loss before the last of them."""
        local, personal = without(state, PERSONAL), part_of(state, PERSONAL)
        metrics: Metrics = {}
        for _ in range(self.settings.inner_steps):
            personal, metrics = self.personal_step(personal, local, batch, context)
        rate = context["learning_rate"] * self.settings.pull
        moved = {name: tensor - rate * (tensor - personal[name]) for name, tensor in local.items()}
        return moved | prefixed(PERSONAL, personal), metrics

    def personal_step(self, personal: State, local: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return personal weights one step closer to the proximal point of the local ones."""
        proximity = Proximity(self.settings.pull, local)
        rate, clip_norm = context["personal_rate"], self.training.clip_norm
        return proximal_step(lambda weights: self.loss(weights, batch), personal, proximity, rate, clip_norm)

    def upload(self, end: State, context: Context) -> State:
        """Return the local weights."""
        return without(end, PERSONAL)

    def keep(self, end: State, context: Context) -> State:
        """Return the personal weights."""
        return prefixed(PERSONAL, part_of(end, PERSONAL))

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the server's weights moved to the clients' mean by the server's rate."""
        mean, share = weighted_mean(updates), self.settings.server_rate
        return {name: (1.0 - share) * tensor + share * mean[name] for name, tensor in server.items()}

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the personal network; the global one where a device never took part."""
        return self.predictor_of(part_of(view.private, PERSONAL) or server)

    def trained_part(self) -> Part | None:
        """Return the personal network."""
        return self.trained_classifier(PERSONAL)
