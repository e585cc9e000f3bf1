"""FedProto: devices exchange class prototypes of their features (Tan et al., AAAI 2022).

The global prototype of a class is the mean over all samples of all devices that hold it, which equation 6 of the paper means
to be; the factor 1 / number of devices that public code adds to it is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trainer.methods.base import Batch, Context, State, Task
from trainer.methods.class_means import ClassMeansMethod, ClassMeansTraining
from trainer.optimisation import cross_entropy


@dataclass(frozen=True)
class FedProto(ClassMeansTraining):
    """Settings of FedProto; ``pull`` is its lambda."""

    name: ClassVar[str] = "fedproto"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedProtoMethod:
        """Return the method for this task."""
        return FedProtoMethod(self, task, dtype)


class FedProtoMethod(ClassMeansMethod):
    """FedProto bound to a task. Devices predict with their heads."""

    def local_loss(self, weights: State, state: State, batch: Batch, context: Context) -> Tensor:
        """Return cross-entropy plus the squared distance of features to the prototypes of their classes, a scalar."""
        features, logits = self.local_outputs(weights, batch["samples"])  # (B, D), (B, C)
        loss = cross_entropy(logits, batch["labels"], batch.get("weights"))
        return loss + self.means_settings.pull * self.pull_to_means(features, batch["labels"], context, batch.get("weights"))
