"""SCAFFOLD against its formulas written by hand."""

from __future__ import annotations

import pytest
import torch

from protocol.errors import InputError
from tests.trainer.methods.by_hand import batches_of, gradients_of, mean_of, moved, shares_of
from tests.trainer.methods.small_federation import (
    COHORT,
    LOOP,
    SEED,
    WRITTEN,
    States,
    assert_close,
    assert_equal,
    begin,
    bound,
    make_clients,
    settings_of,
    train,
)
from trainer.engine.base import Client, Engine, RoundKey
from trainer.methods.base import State
from trainer.methods.names import part_of

RATE, STEPS = 0.1, 2


def local_round(weights: State, control: State, own: State, client: Client, number: int) -> tuple[State, State]:
    """Return a client's weights and new control after a round."""
    start = weights
    for batch in batches_of(client, number):
        gradients = gradients_of(weights, batch)
        weights = moved(weights, {name: each - own[name] + control[name] for name, each in gradients.items()}, RATE)
    return weights, {name: own[name] - control[name] + (each - weights[name]) / (STEPS * RATE) for name, each in start.items()}


@pytest.mark.parametrize("engine", [LOOP, COHORT], ids=["loop", "cohort"])
def test_the_first_round_is_fedavg_bit_for_bit(engine: Engine) -> None:
    one, other = (train(bound(name), engine, make_clients(), rounds=1) for name in ("scaffold", "fedavg"))
    assert_equal(bound("scaffold").global_weights(one.server), other.server)


def test_two_rounds_by_hand() -> None:
    method, clients = bound("scaffold", clip_norm=0.0), make_clients()
    weights = method.global_weights(begin(method, clients))
    control = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    own = {client.device: control for client in clients}
    for number in range(2):
        ends = [local_round(weights, control, own[client.device], client, number) for client in clients]
        weights = mean_of([end for end, _ in ends], shares_of(clients))
        own = {client.device: new for client, (_, new) in zip(clients, ends, strict=True)}
        control = mean_of([new for _, new in ends], shares_of(clients))
    found = train(method, WRITTEN, clients, rounds=2)
    assert_close(method.global_weights(found.server), weights, 1e-12)
    assert_close(part_of(found.server, "control."), control, 1e-12)
    for device, state in own.items():
        assert_close(part_of(found.private[device], "own_control."), state, 1e-12)


def test_the_first_own_control_is_the_mean_gradient_of_the_round() -> None:
    method, clients = bound("scaffold", clip_norm=0.0), make_clients()
    weights = method.global_weights(begin(method, clients))
    gradients = []
    for batch in batches_of(clients[2], 0):
        gradients.append(gradients_of(weights, batch))
        weights = moved(weights, gradients[-1], RATE)
    found = part_of(train(method, WRITTEN, clients, rounds=1).private["client-2"], "own_control.")
    assert_close(found, mean_of(gradients, [0.5, 0.5]), 1e-12)


def test_the_control_stays_the_weighted_mean_of_all_own_controls_when_few_take_part() -> None:
    method, clients = bound("scaffold"), make_clients()
    states = States(begin(method, clients), {})
    for number, cohort in enumerate(([0, 1], [3], [1, 2], [0, 3])):
        result = WRITTEN.run_round(method, states.server, [clients[place] for place in cohort], RoundKey(SEED, number), states.private)
        states = States(method.aggregate(states.server, result.updates), {**states.private, **result.private})
    own = [part_of(states.private[client.device], "own_control.") for client in clients]
    assert_close(part_of(states.server, "control."), mean_of(own, shares_of(clients)), 1e-12)


def test_own_controls_do_not_travel_and_the_change_does() -> None:
    method, clients = bound("scaffold"), make_clients()
    server = begin(method, clients)
    sent = WRITTEN.run_round(method, server, clients, RoundKey(SEED, 0)).updates.state
    weights = set(method.global_weights(server))
    assert set(sent) == weights | {f"control_change.{name}" for name in weights}
    assert set(method.downlink(server, "client-0")) == weights | {f"control.{name}" for name in weights}


def test_passes_are_refused() -> None:
    with pytest.raises(InputError, match="local_epochs 0, got 1"):
        settings_of("scaffold", local_epochs=1)
