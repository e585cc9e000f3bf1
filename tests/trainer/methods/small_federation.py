"""A federation of four tiny clients, and rounds of it that keep the private states.

Methods and engines are shared between tests, because tracing a step takes longer than running it.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from edge_runtime.sampling import ClassIndex
from trainer.engine.base import Client, Engine, RoundKey
from trainer.engine.cohort import CohortEngine
from trainer.engine.loop import LoopEngine
from trainer.methods.base import DeviceView, Method, State, Task
from trainer.methods.registry import METHODS

TASK = Task((4, 4), "uint8", 0.0, 16.0, ("a", "b", "c"))
SMALL: dict[str, Any] = {"model": "mlp-6", "local_steps": 2, "batch_size": 8}
UNLIKE: dict[str, Any] = {
    "architectures": ("mlp-6", "mlp-5-4"), "feature_size": 4, "proxy": "mlp-5", "proxy_batch_size": 8, "scratch_steps": 8,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "fedjets": {"experts": 3, "warmup_rounds": 1},
    "local": {"scratch_steps": 8},
    "pfedhn": {"hidden": 5, "hidden_layers": 1, "embedding": 3, "embedding_steps": 4},
    "pfedme": {"inner_steps": 2},
}
SEED = 3
LOOP, COHORT, WRITTEN = LoopEngine(), CohortEngine(chunk_size=2), LoopEngine(traced=False)


class States(NamedTuple):
    """What a federation holds after some rounds."""

    server: State
    private: dict[str, State]


def settings_of(name: str, **values: Any) -> Any:
    """Return small settings of a method."""
    fields = {field.name for field in dataclasses.fields(METHODS[name])}
    return METHODS[name](**{key: value for key, value in {**SMALL, **UNLIKE, **OWN.get(name, {})}.items() if key in fields} | values)


def bound(name: str, dtype: torch.dtype = torch.float64, **values: Any) -> Any:
    """Return a method with small settings, bound to the task; of any type, because tests look at its own steps."""
    return _bound(settings_of(name, **values), dtype)


@cache
def _bound(settings: Any, dtype: torch.dtype) -> Any:
    """Return the same method for the same settings, so that its traces are made once."""
    return settings.bind(TASK, dtype)


def make_clients(sizes: tuple[int, ...] = (20, 13, 31, 24)) -> list[Client]:
    """Return clients with separable classes in different mixes."""
    generator = np.random.default_rng(5)
    clients = []
    for place, size in enumerate(sizes):
        labels = generator.choice(3, size, p=np.roll([0.7, 0.2, 0.1], place))
        samples = generator.integers(0, 5, (size, 4, 4)) + 5 * labels[:, None, None] * (np.arange(16).reshape(4, 4) % 3 == 1)
        clients.append(Client(f"client-{place}", torch.from_numpy(samples.astype(np.uint8)), torch.from_numpy(labels), ClassIndex(labels)))
    return clients


def begin(method: Method, clients: list[Client]) -> State:
    """Return the server's state before the first round."""
    return method.initial_state(1, {client.device: method.enrol(client.samples, client.labels) for client in clients})


def train(method: Method, engine: Engine, clients: list[Client], rounds: int = 3, start: States | None = None) -> States:
    """Return the states after some rounds."""
    server, private = start or States(begin(method, clients), {})
    for number in range(rounds):
        result = engine.run_round(method, server, clients, RoundKey(SEED, number), private)
        server, private = method.aggregate(server, result.updates), {**private, **result.private}
    return States(server, private)


def view_of(client: Client, private: State | None = None, *, labelled: bool = True) -> DeviceView:
    """Return what a method may see of a client at prediction."""
    return DeviceView(client.device, client.samples, client.labels if labelled else None, private or {}, SEED)


def assert_close(one: State, other: State, tolerance: float) -> None:
    """Compare two states name by name, relative to each tensor's largest entry."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert (tensor - other[name]).abs().max() <= tolerance * max(1.0, float(tensor.abs().max())), name


def assert_equal(one: State, other: State) -> None:
    """Compare two states bit for bit."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
