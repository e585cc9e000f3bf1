"""FML and FedKD: a small network that all share learns together with each device's own, on the same batches.

FML (Shen et al., arXiv 2006.16765): each learns from labels and from the other's scores. FedKD (Wu et al., Nature
Communications 2022): both terms are divided by the sum of both cross-entropies, so that little is taken over while neither knows
anything. FedKD's compression by singular values is left out: bytes are counted as sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from trainer.aggregation import weighted_mean
from trainer.distillation import softened_divergence
from trainer.methods.base import Batch, Context, Metrics, State, Task, Updates
from trainer.methods.checks import check_between
from trainer.methods.proxy_method import PROXY, ClassifyingProxyMethod
from trainer.methods.unlike_method import LOCAL, UnlikeTraining
from trainer.optimisation import clipped_gradients, cross_entropy
from trainer.optimisers import MOMENTUM


@dataclass(frozen=True)
class MutualLearning(UnlikeTraining):
    """Settings of FML.

    Attributes:
        proxy: The network that all share.
        own_share: Weight of the labels in the loss of the device's network; the rest is the shared one's scores.
        shared_share: Weight of the labels in the loss of the shared network.
        temperature: Softens scores.
    """

    name: ClassVar[str] = "fml"

    proxy: str = "proxy-strided"
    own_share: float = 0.5
    shared_share: float = 0.5
    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_between("own_share", self.own_share, 0.0, 1.0)
        check_between("shared_share", self.shared_share, 0.0, 1.0)
        check_between("temperature", self.temperature, 0.1, 100.0)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> MutualLearningMethod:
        """Return the method for this task."""
        return MutualLearningMethod(self, task, dtype)


class MutualLearningMethod(ClassifyingProxyMethod):
    """FML bound to a task."""

    def __init__(self, settings: MutualLearning, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, settings.proxy, task, dtype)
        self.settings = settings

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step of both networks down the sum of their losses, and the device's own loss."""
        trained = {name: tensor for name, tensor in state.items() if name.startswith((LOCAL, PROXY))}
        slots = {name: tensor for name, tensor in state.items() if name.startswith(MOMENTUM)}
        gradients, (_, own) = grad_and_value(lambda weights: self._losses(weights, batch), has_aux=True)(trained)
        for prefix in (LOCAL, PROXY):
            part = {name: each for name, each in gradients.items() if name.startswith(prefix)}
            gradients |= clipped_gradients(part, self.training.clip_norm)
        after, moved = self.optimiser.update(trained, gradients, slots, context["learning_rate"])
        return state | after | moved, {"loss": own}

    def _losses(self, weights: State, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the sum of both losses, and the device's own, scalars."""
        samples, labels, counted = batch["samples"], batch["labels"], batch.get("weights")
        local = self.local_outputs({name: each for name, each in weights.items() if name.startswith(LOCAL)}, samples)[1]  # (B, C)
        shared = self.proxy_outputs(weights, samples)  # (B, C)
        labelled = cross_entropy(local, labels, counted), cross_entropy(shared, labels, counted)
        temperature = self.settings.temperature
        told = (
            softened_divergence(shared.detach(), local, temperature, counted),
            softened_divergence(local.detach(), shared, temperature, counted),
        )
        own, other = self.combine(labelled, told)
        return own + other, own

    def combine(self, labelled: tuple[Tensor, Tensor], told: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the losses of the device's network and of the shared one from their cross-entropies and divergences, scalars."""
        own, shared = self.settings.own_share, self.settings.shared_share
        return own * labelled[0] + (1 - own) * told[0], shared * labelled[1] + (1 - shared) * told[1]

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the mean of the shared networks, weighted by sample counts."""
        return server | weighted_mean(updates)


@dataclass(frozen=True)
class FedKD(MutualLearning):
    """Settings of FedKD; ``own_share`` and ``shared_share`` are not used, as the cross-entropies weigh the terms."""

    name: ClassVar[str] = "fedkd"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedKDMethod:
        """Return the method for this task."""
        return FedKDMethod(self, task, dtype)


class FedKDMethod(MutualLearningMethod):
    """FedKD bound to a task."""

    def combine(self, labelled: tuple[Tensor, Tensor], told: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return each cross-entropy plus its divergence over the sum of both cross-entropies, a constant of the gradient."""
        doubt = (labelled[0] + labelled[1]).detach() + 1e-6
        return labelled[0] + told[0] / doubt, labelled[1] + told[1] / doubt
