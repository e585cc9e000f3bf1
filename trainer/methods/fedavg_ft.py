"""FedAvg-FT: FedAvg, then each device fine-tunes the global network on its own labelled samples.

Training is FedAvg's (McMahan et al., "Communication-efficient learning of deep networks", 2017, Algorithm 1). An upper
reference for new devices, not a rival without labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from edge_runtime.sampling import UniformBatches
from trainer.methods.adaptation import Adaptation
from trainer.methods.base import DeviceView, NewDeviceUses, Predictor, State, Task
from trainer.methods.checks import check_at_least, check_positive
from trainer.methods.classifier_method import LocalTraining
from trainer.methods.fedavg import FedAvgMethod


@dataclass(frozen=True)
class FedAvgFineTuned(LocalTraining):
    """Settings of FedAvg-FT: those of local training, and of the fine-tuning after it.

    Attributes:
        finetune_steps: Steps that a device takes after training.
        finetune_rate: Their learning rate.
    """

    name: ClassVar[str] = "fedavg-ft"

    finetune_steps: int = 50
    finetune_rate: float = 0.03

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_at_least("finetune_steps", self.finetune_steps, 1)
        check_positive("finetune_rate", self.finetune_rate)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedAvgFineTunedMethod:
        """Return the method for this task."""
        return FedAvgFineTunedMethod(self, task, dtype)


class FedAvgFineTunedMethod(FedAvgMethod):
    """FedAvg-FT bound to a task."""

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return that labelled samples are read."""
        return "labels"

    def __init__(self, settings: FedAvgFineTuned, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings
        self.adaptation = Adaptation()

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the network fine-tuned on the device's support; where that has no labels, the global network."""
        chosen = self.settings
        phase = self.repeat("fine_tune", self.step, UniformBatches(chosen.batch_size), chosen.finetune_steps)
        context = {"learning_rate": torch.tensor(chosen.finetune_rate, dtype=self.dtype)}
        return self.predictor_of(self.adaptation.adapt(phase, server, view, context))
