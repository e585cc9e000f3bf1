"""Optimisers as pure functions against torch's own, in float64, with decay and clipping."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import mse_loss

from protocol.errors import InputError
from trainer.methods.base import Batch, State
from trainer.optimisers import WEIGHT, Adam, Optimiser, Sgd, initial_state, training_step

RATE = 0.05
Reference = Callable[[Iterable[Tensor]], torch.optim.Optimizer]

RULES: list[tuple[Optimiser, Reference]] = [
    (Sgd(), lambda weights: torch.optim.SGD(weights, RATE)),
    (Sgd(momentum=0.9, weight_decay=0.01), lambda weights: torch.optim.SGD(weights, RATE, momentum=0.9, weight_decay=0.01)),
    (Adam(), lambda weights: torch.optim.Adam(weights, RATE)),
    (Adam(0.8, 0.95, 1e-6, 0.01), lambda weights: torch.optim.Adam(weights, RATE, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.01)),
]


@pytest.mark.parametrize("clip_norm", [0.0, 0.3])
@pytest.mark.parametrize(("rule", "reference"), RULES, ids=["sgd", "momentum", "adam", "adam with decay"])
def test_thirty_steps_follow_torch(rule: Optimiser, reference: Reference, clip_norm: float) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    state = initial_state(rule, {name: each.detach().clone() for name, each in network.named_parameters()})
    samples, targets = torch.randn(30, 8, 4, dtype=torch.float64), torch.randn(30, 8, 2, dtype=torch.float64)

    def loss(weights: State, batch: Batch) -> Tensor:
        return mse_loss(functional_call(network, weights, (batch["samples"],)), batch["targets"])

    step = training_step(loss, rule, clip_norm)
    theirs = reference(network.parameters())
    for own, target in zip(samples, targets, strict=True):
        state, metrics = step(state, {"samples": own, "targets": target}, {"learning_rate": torch.tensor(RATE, dtype=torch.float64)})
        theirs.zero_grad()
        value = mse_loss(network(own), target)
        value.backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        theirs.step()
        torch.testing.assert_close(metrics["loss"], value.detach(), rtol=1e-5, atol=1e-6)
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(state[WEIGHT + name], parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "make", [lambda: Sgd(momentum=1.5), lambda: Adam(first_decay=1.0), lambda: Adam(epsilon=0.0), lambda: Sgd(weight_decay=-1)]
)
def test_impossible_settings_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        make()
