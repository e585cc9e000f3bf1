"""FD, federated distillation: devices exchange mean class scores (Jeong et al., arXiv 1811.11479), with softened targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trainer.distillation import softened_divergence
from trainer.methods.base import Batch, Context, State, Task
from trainer.methods.checks import check_between
from trainer.methods.class_means import COUNTS, MEANS, ClassMeansMethod, ClassMeansTraining
from trainer.optimisation import cross_entropy


@dataclass(frozen=True)
class FederatedDistillation(ClassMeansTraining):
    """Settings of FD.

    Attributes:
        temperature: Softens both scores.
    """

    name: ClassVar[str] = "fd"

    temperature: float = 4.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_between("temperature", self.temperature, 0.1, 100.0)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FederatedDistillationMethod:
        """Return the method for this task."""
        return FederatedDistillationMethod(self, task, dtype)


class FederatedDistillationMethod(ClassMeansMethod):
    """FD bound to a task."""

    def __init__(self, settings: FederatedDistillation, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings

    def told_size(self) -> int:
        """Return the number of classes: what is averaged are logits."""
        return len(self.task.classes)

    def told(self, state: State, samples: Tensor) -> Tensor:
        """Return logits (B, C) of raw samples (B, *shape)."""
        return self.local_outputs(state, samples)[1]

    def local_loss(self, weights: State, state: State, batch: Batch, context: Context) -> Tensor:
        """Return cross-entropy plus the divergence from the mean scores of each sample's class, a scalar."""
        logits, labels = self.local_outputs(weights, batch["samples"])[1], batch["labels"]  # (B, C), (B,)
        known = (context[COUNTS] > 0).to(logits.dtype).index_select(0, labels)  # (B,)
        own = batch.get("weights")
        target = torch.where(known.unsqueeze(1) > 0, context[MEANS].index_select(0, labels), logits.detach())  # (B, C)
        term = softened_divergence(target, logits, self.settings.temperature, own)
        return cross_entropy(logits, labels, own) + self.settings.pull * term
