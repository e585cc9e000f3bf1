"""FlexLoRA: the rank-R pair nearest to the mean of products (Bai et al., NeurIPS 2024, arXiv 2402.11505).

B = U S and A = V^T as in the paper; there the product is formed and decomposed, here it is not, to the same pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.aggregation import weighted_mean
from trainer.factors.pair import stacked
from trainer.factors.product import best_of_rank
from trainer.lora import FACTOR_A
from trainer.methods.base import State, Task, Updates
from trainer.methods.lora_aggregation import named, pairs_of
from trainer.methods.lora_method import LoraMethod, LoraTraining


@dataclass(frozen=True)
class FlexLoRA(LoraTraining):
    """Settings of FlexLoRA: those of local adaptation."""

    name: ClassVar[str] = "flexlora"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FlexLoRAMethod:
        """Return the method for this task."""
        return FlexLoRAMethod(self, task, dtype)


class FlexLoRAMethod(LoraMethod):
    """FlexLoRA bound to a task."""

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the nearest pair of every layer, and the head's mean."""
        return nearest_pairs(self, server, updates)


def nearest_pairs(method: LoraMethod, server: State, updates: Updates) -> State:
    """Return a server's state with the pair of every layer that is nearest to the mean of products, and the head's mean."""
    after = {**server, **weighted_mean(updates, method.head_names)}
    for layer in method.layers:
        rank, stack = len(server[f"{layer}.{FACTOR_A}"]), stacked(pairs_of(updates, layer), updates.sample_counts)
        after |= named(layer, best_of_rank(stack, rank, split="into_b", algorithm="exact"), method.dtype)
    return after
