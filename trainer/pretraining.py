"""Pretraining of a backbone on one machine: images, labels, a few passes of Adam, a file of weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protocol.errors import NumericalError
from trainer.data.dataset import Dataset
from trainer.methods.base import State
from trainer.models.mlp import Normalise
from trainer.models.registry import build_model

BATCH_SIZE = 64
RATE = 2e-3
SHIFT = 2  # pixels at most, in both directions
HELD_OUT = 0.05


def pretrain(
    model: str, dataset: Dataset, epochs: int, seed: int, observe: Callable[[int, float], None] | None = None
) -> tuple[State, float]:
    """Return the weights of a model by name after training on a data set, and its accuracy on a held-out twentieth.

    Images are shifted by up to two pixels, mirrored and made brighter or darker at random; vectors are taken as they are.

    Args:
        model: Name of the model, or ``module:factory``.
        dataset: Labelled samples.
        epochs: Passes over the data.
        seed: Seed of weights, order and changes of images.
        observe: Called with the passes done and the mean loss of the last one.

    Raises:
        NumericalError: Training diverged.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(Normalise(dataset.minimum, dataset.maximum), build_model(model, dataset.sample_shape, len(dataset.classes)))
        network.float()
        order = torch.randperm(len(dataset.labels))
        held = max(1, int(HELD_OUT * len(order)))
        samples, labels = torch.from_numpy(dataset.samples), torch.from_numpy(dataset.labels)
        steps = epochs * max(1, (len(order) - held) // BATCH_SIZE)
        optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for epoch in range(epochs):
            loss = _one_pass(network, samples, labels, order[held:], optimiser, schedule)
            if not np.isfinite(loss):
                raise NumericalError(f"pretraining diverged in pass {epoch}", got=loss, hint="normalise the data to a sane range")
            if observe is not None:
                observe(epoch + 1, loss)
        accuracy = _accuracy(network, samples[order[:held]], labels[order[:held]])
    return {name: tensor.detach() for name, tensor in network[1].named_parameters()}, accuracy


def _one_pass(
    network: nn.Module,
    samples: Tensor,
    labels: Tensor,
    places: Tensor,
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float:
    """Return the mean loss of one pass over the samples at ``places``, in random order."""
    losses = []
    for batch in places[torch.randperm(len(places))].split(BATCH_SIZE):
        if len(batch) < min(BATCH_SIZE, len(places)):
            continue
        loss = F.cross_entropy(network(_changed(samples[batch])), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return float(np.mean(losses))


def _changed(batch: Tensor) -> Tensor:
    """Return images (B, *shape) shifted, half of them mirrored, and scaled in brightness; other samples as they are."""
    if batch.dim() < 3:
        return batch
    down, across = torch.randint(-SHIFT, SHIFT + 1, (2,)).tolist()
    moved = torch.roll(batch.float(), (down, across), (-2, -1))  # (B, *shape)
    ones = [1] * (batch.dim() - 1)
    mirrored = torch.where((torch.rand(len(batch)) < 0.5).view(-1, *ones), moved.flip(-1), moved)
    return mirrored * (0.8 + 0.4 * torch.rand(len(batch)).view(-1, *ones))


def _accuracy(network: nn.Module, samples: Tensor, labels: Tensor) -> float:
    """Return the share of samples (N, *shape) that a network tells right."""
    with torch.no_grad():
        return float((network(samples).argmax(dim=1) == labels).float().mean())
