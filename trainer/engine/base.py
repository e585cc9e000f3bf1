"""What every engine does: run a round's declared phases for a cohort of clients and return their stacked updates.

Engines differ in how they run a step (one client after the other, or many at once), never in what it computes: the
draws come from ``edge_runtime.sampling`` and depend only on seed, round and device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from edge_runtime.sampling import ClassIndex, DrawKey, normal_inputs
from trainer.methods.base import Batch, Method, Repeat, State, Updates


@dataclass(frozen=True, eq=False)
class Client:
    """One simulated device with its training data.

    Attributes:
        device: Device id.
        samples: Raw samples, (N, *shape).
        labels: Class indices, (N,) int64.
        index: Where each class lies in ``labels``.
    """

    device: str
    samples: Tensor
    labels: Tensor
    index: ClassIndex


@dataclass(frozen=True)
class RoundKey:
    """Seed of the run and number of the round, 0-based."""

    seed: int
    round: int


@dataclass(frozen=True)
class RoundResult:
    """Updates of a round and the mean loss of its local steps."""

    updates: Updates
    loss: float


class Engine(Protocol):
    """Runs rounds."""

    def run_round(self, method: Method, server: State, clients: Sequence[Client], key: RoundKey) -> RoundResult:
        """Return what the clients send up after the method's phases."""


def draw_batches(phase: Repeat, client: Client, key: RoundKey, dtype: torch.dtype) -> Batch:
    """Return all batches of a phase for one client, each tensor with the steps first: (S, B, *shape), (S, B), ..."""
    draw_key = DrawKey(key.seed, key.round, client.device)
    places = torch.from_numpy(phase.draw.draw(draw_key, client.index, phase.count))  # (S, B)
    batch = {"samples": client.samples[places], "labels": client.labels[places]}  # (S, B, *shape), (S, B)
    for random_input in phase.random_inputs:
        numbers = normal_inputs(draw_key, random_input.name, (phase.count, *random_input.shape))
        batch[random_input.name] = torch.from_numpy(numbers).to(dtype)  # (S, *shape)
    return batch


def in_device_order(clients: Sequence[Client]) -> list[Client]:
    """Return the clients in ascending order of device id, which makes every later sum the same."""
    return sorted(clients, key=lambda client: client.device)


def collect(clients: Sequence[Client], state: State, losses: Sequence[Tensor]) -> RoundResult:
    """Return the result of a round from the ordered clients, their stacked states (M, *shape) and all losses."""
    counts = torch.tensor([len(client.labels) for client in clients])  # (M,)
    updates = Updates(tuple(client.device for client in clients), state, counts)
    return RoundResult(updates, float(torch.cat([loss.reshape(-1) for loss in losses]).mean()))
