"""FedEx-LoRA: factors are averaged, and what that loses is added to the frozen weights (Singhal et al., ACL 2025, arXiv 2410.09432).

    W <- W + scale * (sum p_k B_k A_k - B A)

exact in every round. The residual goes down dense, as the sum of all rounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.aggregation import weighted_mean
from trainer.factors.rules import fedex_lora, folded
from trainer.methods.base import State, Task, Updates
from trainer.methods.flora import FLoRAMethod
from trainer.methods.lora_aggregation import named, pairs_of
from trainer.methods.lora_method import CHANGE, LoraMethod, LoraTraining


@dataclass(frozen=True)
class FedExLoRA(LoraTraining):
    """Settings of FedEx-LoRA: those of local adaptation."""

    name: ClassVar[str] = "fedex-lora"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedExLoRAMethod:
        """Return the method for this task."""
        return FedExLoRAMethod(self, task, dtype)


class FedExLoRAMethod(FLoRAMethod):
    """FedEx-LoRA bound to a task."""

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return what all methods begin with, and changes of zero."""
        return LoraMethod.initial_state(self, seed, enrolled) | self.no_changes()

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the means, and the changes with this round's residual."""
        after = {**server, **weighted_mean(updates, self.head_names)}
        for layer in self.layers:
            (mean, lost), name = fedex_lora(pairs_of(updates, layer), updates.sample_counts), f"{CHANGE}{layer}.weight"
            after |= named(layer, mean, self.dtype) | {name: folded(server[name], lost, self.scale_of(layer))}
        return after
