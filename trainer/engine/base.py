"""What every engine does: run a round's declared phases for a cohort of clients and return their stacked updates.

Engines differ in how they run a step (one client after the other, or many at once), never in what it computes: the
draws come from ``edge_runtime.sampling`` and depend only on seed, round and device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from edge_runtime.sampling import PADDING, ClassIndex, DrawKey, byte_inputs, normal_inputs
from trainer.methods.base import Batch, Context, Method, Repeat, State, Updates


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
    """What a round gives.

    Attributes:
        updates: What goes to the server.
        private: What each client keeps, by device id.
        losses: Mean loss of each client's local steps in the order of ``updates.devices``, (M,).
        local_steps: Steps that all clients took together.
    """

    updates: Updates
    private: Mapping[str, State]
    losses: Tensor
    local_steps: int

    @property
    def loss(self) -> float:
        """Return the mean loss over clients."""
        return float(self.losses.mean())


class Engine(Protocol):
    """Runs rounds."""

    def run_round(
        self, method: Method, server: State, clients: Sequence[Client], key: RoundKey, private: Mapping[str, State] | None = None
    ) -> RoundResult:
        """Return what the clients send up and keep after the method's phases.

        Args:
            method: Says what a client does.
            server: Server state before the round.
            clients: The cohort, in any order.
            key: Seed and number of the round.
            private: What clients kept from earlier rounds, by device id.
        """


def start_state(method: Method, server: State, device: str, private: Mapping[str, State]) -> State:
    """Return what a client starts the round from: what it is sent and what it kept."""
    kept = private.get(device)
    return method.downlink(server, device) | (method.private_state(server, device) if kept is None else kept)


def floating_dtype(state: State) -> torch.dtype:
    """Return the dtype that a state computes in."""
    return next(tensor.dtype for tensor in state.values() if tensor.is_floating_point())


def draw_batches(phase: Repeat, client: Client, key: RoundKey, dtype: torch.dtype) -> Batch:
    """Return all batches of a phase for one client, each tensor with the steps first: (S, B, *shape), (S, B), ...

    ``weights`` (S, B) is there only where batches are shorter than B: 1 for a sample, 0 for padding.
    """
    draw_key = DrawKey(key.seed, key.round, client.device)
    steps = phase.steps(len(client.labels))
    drawn = phase.draw.draw(draw_key, client.index, steps)  # (S, B)
    is_padding = drawn == PADDING  # (S, B)
    places = torch.from_numpy(np.where(is_padding, 0, drawn)).to(client.labels.device)  # (S, B)
    batch = {"samples": take(client.samples, places), "labels": take(client.labels, places)}  # (S, B, *shape), (S, B)
    if is_padding.any():
        batch["weights"] = torch.from_numpy(~is_padding).to(client.labels.device, dtype)  # (S, B)
    for each in phase.random_inputs:
        shape = (steps, *each.shape)
        numbers = torch.from_numpy(
            byte_inputs(draw_key, each.name, shape) if each.kind == "bytes" else normal_inputs(draw_key, each.name, shape)
        )
        batch[each.name] = numbers.to(client.labels.device, torch.uint8 if each.kind == "bytes" else dtype)  # (S, *shape)
    return batch


def take(rows: Tensor, places: Tensor) -> Tensor:
    """Return rows (N, *shape) at places (S, B), as (S, B, *shape): whole rows are copied, far quicker than by indexing."""
    chosen: Tensor = rows.index_select(0, places.flatten())  # (S * B, *shape)
    return chosen.reshape(*places.shape, *rows.shape[1:])


def in_device_order(clients: Sequence[Client]) -> list[Client]:
    """Return the clients in ascending order of device id, which makes every later sum the same."""
    return sorted(clients, key=lambda client: client.device)


def unstack(stacked: State, devices: Sequence[str]) -> dict[str, State]:
    """Return each device's own tensors (*shape) from stacked ones (M, *shape), copied; empty where there is nothing.

    A view would keep what all other devices of its chunk held in memory until this device is selected again.
    """
    return {device: {name: tensor[place].clone() for name, tensor in stacked.items()} for place, device in enumerate(devices) if stacked}


@dataclass(frozen=True, eq=False)
class _Piece:
    """What some clients gave: device ids, stacked uploads (m, *shape), sample counts, mean losses (m,)."""

    devices: list[str]
    upload: State
    counts: list[int]
    losses: Tensor

    def rows(self) -> Iterator[_Piece]:
        """Yield what each client gave."""
        for place, (device, count) in enumerate(zip(self.devices, self.counts, strict=True)):
            one = slice(place, place + 1)
            yield _Piece([device], {name: tensor[one] for name, tensor in self.upload.items()}, [count], self.losses[one])


@dataclass
class RoundCollector:
    """Puts a round's results together in device order."""

    pieces: list[_Piece] = field(default_factory=list)
    private: dict[str, State] = field(default_factory=dict)
    local_steps: int = 0

    def add(self, method: Method, clients: Sequence[Client], end: State, context: Context, losses: Tensor, steps: int) -> None:
        """Take in some clients in device order: stacked states (m, *shape) after the phases, mean losses (m,) and steps taken."""
        devices = [client.device for client in clients]
        self.pieces.append(_Piece(devices, method.upload(end, context), [len(client.labels) for client in clients], losses))
        self.private |= unstack(method.keep(end, context), devices)
        self.local_steps += steps

    def result(self) -> RoundResult:
        """Return the round's result; chunks that lie between each other are cut into single clients."""
        pieces = self.pieces
        if not _is_ascending([device for piece in pieces for device in piece.devices]):
            pieces = sorted((row for piece in pieces for row in piece.rows()), key=lambda row: row.devices[0])
        devices = tuple(device for piece in pieces for device in piece.devices)
        counts = torch.tensor([count for piece in pieces for count in piece.counts])
        updates = Updates(devices, tuple(piece.upload for piece in pieces), counts)
        return RoundResult(updates, self.private, torch.cat([piece.losses for piece in pieces]), self.local_steps)


def _is_ascending(devices: Sequence[str]) -> bool:
    """Tell whether device ids stand in their order."""
    return all(before <= after for before, after in pairwise(devices))
