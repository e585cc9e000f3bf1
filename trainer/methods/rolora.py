"""RoLoRA: rounds train B and A in turn, so that each mean is exact (Chen et al., NeurIPS 2025, arXiv 2502.01755).

The factor that rests is the same everywhere: participants have it from the round before, so only the other one travels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.lora import FACTOR_A, FACTOR_B
from trainer.methods.base import State, Task, Updates
from trainer.methods.fedit import FedITMethod
from trainer.methods.lora_method import LoraTraining

ROUND = "round"


@dataclass(frozen=True)
class RoLoRA(LoraTraining):
    """Settings of RoLoRA: those of local adaptation."""

    name: ClassVar[str] = "rolora"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> RoLoRAMethod:
        """Return the method for this task."""
        return RoLoRAMethod(self, task, dtype)


class RoLoRAMethod(FedITMethod):
    """RoLoRA bound to a task."""

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return what all methods begin with, and the number of the round."""
        return super().initial_state(seed, enrolled) | {ROUND: torch.tensor(0)}

    def trained_now(self, server: State) -> tuple[str, ...]:
        """Return every B in even rounds, every A in odd ones, and the head: B first, since A alone moves nothing while B is zero."""
        resting = FACTOR_A if int(server[ROUND]) % 2 == 0 else FACTOR_B
        return tuple(name for name in self.trained_names if not name.endswith(resting))

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the means of what the round trained."""
        return {**super().aggregate(server, updates), ROUND: server[ROUND] + 1}
