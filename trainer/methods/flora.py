"""FLoRA: factors are stacked, which is exact, and folded into the frozen weights (Wang et al., NeurIPS 2024, arXiv 2409.05976).

Clients begin every round with fresh factors. What goes down is the dense change of every adapted weight, since a client may
have missed rounds: this method saves on the way up only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.aggregation import weighted_mean
from trainer.factors.rules import flora, folded
from trainer.methods.base import State, Task, Updates
from trainer.methods.lora_aggregation import pairs_of
from trainer.methods.lora_method import CHANGE, LoraMethod, LoraTraining

ROUND, SEED = "round", "seed"
STRIDE = 1_000_003  # between the seeds of two rounds


@dataclass(frozen=True)
class FLoRA(LoraTraining):
    """Settings of FLoRA: those of local adaptation."""

    name: ClassVar[str] = "flora"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FLoRAMethod:
        """Return the method for this task."""
        return FLoRAMethod(self, task, dtype)


class FLoRAMethod(LoraMethod):
    """FLoRA bound to a task."""

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return what all methods begin with, changes of zero, the number of the round and the seed of fresh factors."""
        counters = {ROUND: torch.tensor(0), SEED: torch.tensor(seed)}
        return super().initial_state(seed, enrolled) | self.no_changes() | counters

    def no_changes(self) -> State:
        """Return changes of zero for every adapted weight."""
        weights = dict(self.network.named_parameters())
        names = [f"{layer}.weight" for layer in self.layers]
        return {CHANGE + name: torch.zeros_like(weights[name]) for name in names}

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the changes with the mean product folded in, the head's mean, and fresh factors."""
        number = server[ROUND] + 1
        fresh = self.draw_adapter(int(server[SEED]) + STRIDE * int(number))
        after = {**server, **{name: tensor.to(server[name].device) for name, tensor in fresh.items()}, ROUND: number}
        for layer in self.layers:
            exact, name = flora(pairs_of(updates, layer), updates.sample_counts), f"{CHANGE}{layer}.weight"
            after[name] = folded(server[name], exact, self.scale_of(layer))
        return {**after, **weighted_mean(updates, self.head_names)}
