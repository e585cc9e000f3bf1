"""Local adaptation with memory: every participant adapts the backbone alone and keeps its factors; nothing travels.

The reference that tells what federation adds. All begin with the same factors and head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from protocol.errors import InputError
from trainer.methods.base import Context, DeviceView, State, Task, Updates
from trainer.methods.lora_method import LoraMethod, LoraTraining
from trainer.methods.names import without
from trainer.methods.parts import Part
from trainer.optimisers import MOMENTUM


@dataclass(frozen=True)
class LocalLoRA(LoraTraining):
    """Settings of local adaptation."""

    name: ClassVar[str] = "local-lora"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> LocalLoRAMethod:
        """Return the method for this task."""
        return LocalLoRAMethod(self, task, dtype)


class LocalLoRAMethod(LoraMethod):
    """Local adaptation bound to a task: the server's state is the common beginning and never changes."""

    def downlink(self, server: State, device: str) -> State:
        """Return nothing."""
        return {}

    def private_state(self, server: State, device: str) -> State:
        """Return the common beginning and a momentum of zeros."""
        start = self.start_of(server, device)
        return {**start, **self._slots(start)}

    def upload(self, end: State, context: Context) -> State:
        """Return nothing."""
        return {}

    def keep(self, end: State, context: Context) -> State:
        """Return the device's factors and head, and a momentum of zeros for the next round."""
        kept = without(end, MOMENTUM)
        return {**kept, **self._slots(kept)}

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the common beginning as it is."""
        return server

    def start_for(self, server: State, view: DeviceView) -> State:
        """Return what the device kept; the beginning where it never took part."""
        return without(view.private, MOMENTUM) or self.start_of(server, view.device)

    def parts(self, server: State) -> tuple[Part, ...]:
        """Refuse: nothing was trained that another device could run."""
        hint = "train fedit, whose factors fit every device"
        raise InputError("local-lora makes no classifier for a new device", expected="one that shares factors", got="local-lora", hint=hint)

    def sizes(self, server: State) -> dict[str, int]:
        """Return that nothing travels, and the weights that classify."""
        return {**super().sizes(server), "parameters": 0}
