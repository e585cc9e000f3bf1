"""The common work: 1,000 users with 50 samples each, 50 of them a round, one local epoch in batches of 10, SGD at 0.1.

Samples are random, because time is compared and not accuracy. Two networks: an MLP 784-128-10 on 28 x 28 inputs, and the
CNN with 1.63 million weights of pfl-research's CIFAR-10 benchmark on 3 x 32 x 32 inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from edge_runtime.sampling import ClassIndex
from trainer.engine.base import Client
from trainer.methods.base import Task
from trainer.methods.fedavg import FedAvg, FedAvgMethod
from trainer.models.registry import build_model

USERS, SAMPLES, COHORT, BATCH, RATE, CLASSES = 1000, 50, 50, 10, 0.1, 10
SHAPES = {"mlp": (1, 28, 28), "cnn": (3, 32, 32)}
MODELS = {"mlp": "mlp-128", "cnn": "cnn"}


@dataclass(frozen=True, eq=False)
class Work:
    """One of the two works.

    Attributes:
        name: ``mlp`` or ``cnn``.
        samples: (1000, 50, *shape) float32.
        labels: (1000, 50) int64.
    """

    name: str
    samples: Tensor
    labels: Tensor

    @property
    def task(self) -> Task:
        """Return what a method must know; the samples are normalised already."""
        return Task(SHAPES[self.name], "float32", 0.0, 1.0, tuple(map(str, range(CLASSES))))

    def method(self) -> FedAvgMethod:
        """Return FedAvg as the work asks for it: no clipping, one epoch."""
        return FedAvg(model=MODELS[self.name], learning_rate=RATE, local_epochs=1, batch_size=BATCH, clip_norm=0.0).bind(self.task)

    def clients(self) -> list[Client]:
        """Return the users as simulated devices."""
        return [
            Client(f"user-{place:03d}", samples, labels, ClassIndex(labels.numpy()))
            for place, (samples, labels) in enumerate(zip(self.samples, self.labels, strict=True))
        ]


def make_work(name: str) -> Work:
    """Return a work by name, the same data every time."""
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(USERS, SAMPLES, *SHAPES[name], generator=generator)  # (U, N, *shape)
    labels = torch.randint(0, CLASSES, (USERS, SAMPLES), generator=generator)  # (U, N)
    return Work(name, samples, labels)


def plain_network(name: str) -> nn.Module:
    """Return the network as a PyTorch user would write it."""
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    convolutions = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25))
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, CLASSES))


def weights_of(name: str) -> int:
    """Return the number of weights, the same for our network and the plain one."""
    return sum(tensor.numel() for tensor in build_model(MODELS[name], SHAPES[name], CLASSES).parameters())
