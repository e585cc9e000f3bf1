"""LoRA-FAIR: factors are averaged, and B is corrected towards the mean of products (Bian et al., ICCV 2025, arXiv 2411.14961).

In the paper the server follows a gradient of a cosine similarity, which does not see scale. Here the distance is the
Frobenius norm, whose minimum with a ridge has a closed form:

    dB = (sum p_k B_k (A_k A^T) - B A A^T) (A A^T + ridge I)^-1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.aggregation import weighted_mean
from trainer.factors.rules import lora_fair
from trainer.methods.base import State, Task, Updates
from trainer.methods.checks import check_between
from trainer.methods.lora_aggregation import named, pairs_of
from trainer.methods.lora_method import LoraMethod, LoraTraining


@dataclass(frozen=True)
class LoRAFair(LoraTraining):
    """Settings of LoRA-FAIR: those of local adaptation.

    Attributes:
        ridge: Strength with which the correction is kept small.
    """

    name: ClassVar[str] = "lora-fair"

    ridge: float = 0.01

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_between("ridge", self.ridge, 1e-12, 1e6)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> LoRAFairMethod:
        """Return the method for this task."""
        return LoRAFairMethod(self, task, dtype)


class LoRAFairMethod(LoraMethod):
    """LoRA-FAIR bound to a task."""

    def __init__(self, settings: LoRAFair, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.ridge = settings.ridge

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the means with every B corrected."""
        after = {**server, **weighted_mean(updates, self.head_names)}
        for layer in self.layers:
            after |= named(layer, lora_fair(pairs_of(updates, layer), updates.sample_counts, self.ridge), self.dtype)
        return after
