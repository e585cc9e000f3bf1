"""Local: every device trains its own network alone; nothing travels. The reference for what federation adds.

All start from the same weights, which follow from the run's seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from edge_runtime.sampling import UniformBatches
from protocol.errors import InputError
from trainer.methods.adaptation import Adaptation
from trainer.methods.base import Context, DeviceView, NewDeviceUses, Predictor, State, Task, Updates
from trainer.methods.checks import check_at_least
from trainer.methods.classifier_method import LocalTraining
from trainer.methods.fedavg import FedAvgMethod
from trainer.methods.parts import Part


@dataclass(frozen=True)
class Local(LocalTraining):
    """Settings of Local: those of local training.

    Attributes:
        scratch_steps: Steps that a device takes which never took part, from the beginning.
    """

    name: ClassVar[str] = "local"

    scratch_steps: int = 500

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_at_least("scratch_steps", self.scratch_steps, 1)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> LocalMethod:
        """Return the method for this task."""
        return LocalMethod(self, task, dtype)


class LocalMethod(FedAvgMethod):
    """Local bound to a task: the server's state is the common beginning and never changes."""

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return that labelled samples are read."""
        return "labels"

    def __init__(self, settings: Local, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings
        self.adaptation = Adaptation()

    def downlink(self, server: State, device: str) -> State:
        """Return nothing."""
        return {}

    def private_state(self, server: State, device: str) -> State:
        """Return the common beginning."""
        return server

    def upload(self, end: State, context: Context) -> State:
        """Return nothing."""
        return {}

    def keep(self, end: State, context: Context) -> State:
        """Return the device's own weights."""
        return end

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the common beginning as it is."""
        return server

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the device's own network; one trained from scratch on labelled support where it never took part.

        Without labels it is the untrained beginning: there is no global network, and gACC is that of chance.
        """
        if view.private:
            return self.predictor_of(view.private)
        phase = self.repeat("train_from_scratch", self.step, UniformBatches(self.settings.batch_size), self.settings.scratch_steps)
        return self.predictor_of(self.adaptation.adapt(phase, server, view, self.context(server)))

    def parts(self, server: State) -> tuple[Part, ...]:
        """Refuse: nothing was trained that another device could run."""
        hint = "train fedavg, whose network runs on every device"
        raise InputError("local makes no classifier for a new device", expected="a method that shares one", got="local", hint=hint)

    def sizes(self, server: State) -> dict[str, int]:
        """Return that nothing travels, and the number of weights that classify."""
        return {**super().sizes(server), "parameters": 0}
