"""Standalone: every device trains a network of its own kind alone. What federation must beat, with the same draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.methods.base import State, Task, Updates
from trainer.methods.unlike_method import UnlikeMethod, UnlikeTraining


@dataclass(frozen=True)
class Standalone(UnlikeTraining):
    """Settings of Standalone: those of local training of unlike networks."""

    name: ClassVar[str] = "standalone"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> StandaloneMethod:
        """Return the method for this task."""
        return StandaloneMethod(self, task, dtype)


class StandaloneMethod(UnlikeMethod):
    """Standalone bound to a task."""

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the server's state as it is."""
        return server
