"""The small classifier, its gradients and the draws of its batches written again, without the code under test."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from edge_runtime.sampling import DrawKey, UniformBatches
from tests.trainer.methods.small_federation import SEED
from trainer.engine.base import Client
from trainer.methods.base import State

Pair = tuple[Tensor, Tensor]  # samples (B, 4, 4) and labels (B,)


def logits_of(weights: Mapping[str, Tensor], samples: Tensor) -> Tensor:
    x = samples.flatten(1).double() / 16.0
    hidden = (x @ weights["1.layers.0.weight"].T + weights["1.layers.0.bias"]).clamp(min=0)
    return hidden @ weights["1.layers.1.weight"].T + weights["1.layers.1.bias"]


def loss_of(weights: Mapping[str, Tensor], batch: Pair) -> Tensor:
    return torch.nn.functional.cross_entropy(logits_of(weights, batch[0]), batch[1])


def gradients_of(weights: Mapping[str, Tensor], batch: Pair) -> State:
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in weights.items()}
    found = torch.autograd.grad(loss_of(leaves, batch), list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def batches_of(client: Client, number: int, steps: int = 2, size: int = 8) -> list[Pair]:
    places = torch.from_numpy(UniformBatches(size).draw(DrawKey(SEED, number, client.device), client.index, steps))
    return [(client.samples[row], client.labels[row]) for row in places]


def moved(weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rate: float) -> State:
    return {name: tensor - rate * gradients[name] for name, tensor in weights.items()}


def named(pair: Pair) -> dict[str, Tensor]:
    return {"samples": pair[0], "labels": pair[1]}


def shares_of(clients: list[Client]) -> list[float]:
    total = sum(len(client.labels) for client in clients)
    return [len(client.labels) / total for client in clients]


def mean_of(states: list[State], shares: list[float]) -> State:
    return {name: torch.stack([share * state[name] for share, state in zip(shares, states, strict=True)]).sum(0) for name in states[0]}
