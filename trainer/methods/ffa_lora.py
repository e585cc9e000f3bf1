"""FFA-LoRA: A is drawn once and frozen, B trains, so that the mean is exact (Sun et al., ICLR 2024, arXiv 2403.12313).

Every client has the same A, which follows from the run's seed and never travels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.lora import FACTOR_A
from trainer.methods.base import State, Task
from trainer.methods.fedit import FedITMethod
from trainer.methods.lora_method import LoraTraining


@dataclass(frozen=True)
class FFALoRA(LoraTraining):
    """Settings of FFA-LoRA: those of local adaptation."""

    name: ClassVar[str] = "ffa-lora"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FFALoRAMethod:
        """Return the method for this task."""
        return FFALoRAMethod(self, task, dtype)


class FFALoRAMethod(FedITMethod):
    """FFA-LoRA bound to a task."""

    def trained_now(self, server: State) -> tuple[str, ...]:
        """Return every B and the head."""
        return tuple(name for name in self.trained_names if not name.endswith(FACTOR_A))
