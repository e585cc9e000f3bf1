"""FedIT: factors are averaged one by one (Zhang et al., "Towards building the federated GPT", arXiv 2305.05644).

The mean of products is not the product of means, sum p_k B_k A_k - B A = sum p_k (B_k - B)(A_k - A): that much is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.aggregation import weighted_mean
from trainer.methods.base import State, Task, Updates
from trainer.methods.lora_method import LoraMethod, LoraTraining


@dataclass(frozen=True)
class FedIT(LoraTraining):
    """Settings of FedIT: those of local adaptation."""

    name: ClassVar[str] = "fedit"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedITMethod:
        """Return the method for this task."""
        return FedITMethod(self, task, dtype)


class FedITMethod(LoraMethod):
    """FedIT bound to a task."""

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the means of factors and head, weighted by sample counts."""
        return {**server, **weighted_mean(updates)}
