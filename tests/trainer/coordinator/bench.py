"""A real FedAvg of a small network, devices that change its state by seeded noise, and rounds without a network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protocol.envelope import Envelope, Header
from protocol.messages import Message, ParameterUpdate, Receipt
from protocol.tensors import decode_tensors
from trainer.coordinator.parameter_exchange import ParameterExchange, encode_state
from trainer.coordinator.plan import RoundPlan
from trainer.coordinator.rounds import Rounds
from trainer.methods.base import Task, Updates
from trainer.methods.fedavg import FedAvg

TASK = Task((2, 3), "float32", -1.0, 1.0, ("cat", "dog", "bird"))
METHOD = FedAvg(model="mlp-4").bind(TASK)
FIRST = METHOD.initial_state(3)
DEVICES = tuple(f"pi-{number}" for number in range(5))
PLAN = RoundPlan(2, deadline_seconds=100.0, minimum_devices=2, seed=5)
START = 1_800_000_000.0


def rounds_in(folder: Path, plan: RoundPlan = PLAN, devices: Iterable[str] = DEVICES) -> Rounds:
    known = frozenset(devices)
    return Rounds(folder, plan, 7, ParameterExchange(METHOD, FIRST, plan), lambda: known)


def trained(base: bytes, device: str, number: int) -> dict[str, np.ndarray]:
    """Return what a device makes of a state: the same whenever it is asked."""
    seed = int.from_bytes(hashlib.sha256(f"{device} {number}".encode()).digest()[:8], "little")
    draws = np.random.default_rng(seed)
    tree: dict[str, Any] = dict(decode_tensors(base))
    return {name: (tensor + 0.1 * draws.standard_normal(tensor.shape)).astype(np.float32) for name, tensor in sorted(tree.items())}


def samples_of(device: str) -> int:
    return 10 + 7 * int(device.rpartition("-")[2])


def update_of(rounds: Rounds, device: str, **changes: object) -> ParameterUpdate:
    """Return the update of a device to its task."""
    assert rounds.current is not None
    digest, base = rounds.downlink(device)
    tree = trained(base, device, rounds.current.number)
    return replace(ParameterUpdate(rounds.current.number, digest, samples_of(device), "float32", {"loss": 1.0}, tree), **changes)  # type: ignore[arg-type]


def envelope(device: str, message: Message, sequence: int = 1, boot: int = 1) -> Envelope:
    return Envelope(Header(message.KIND, "demo", device, boot, sequence, START, START + 600, "ab" * 32, {}), message)


def send(rounds: Rounds, device: str, sequence: int = 1, now: float = START + 1, **changes: object) -> Receipt:
    return rounds.take([envelope(device, update_of(rounds, device, **changes), sequence)], now)[0]


def expected_states(count: int, devices: Iterable[str] = DEVICES) -> list[bytes]:
    """Return the server states of rounds with everybody, made by the method alone as a simulator does."""
    server, states = FIRST, []
    for number in range(7, 7 + count):
        trees = [trained(encode_state(METHOD.downlink(server, device)), device, number) for device in sorted(devices)]
        stacked = {name: torch.from_numpy(np.stack([tree[name] for tree in trees])) for name in trees[0]}  # (M, *shape)
        counts = torch.tensor([samples_of(device) for device in sorted(devices)])
        server = METHOD.aggregate(server, Updates(tuple(sorted(devices)), (stacked,), counts))
        states.append(encode_state(server))
    return states
