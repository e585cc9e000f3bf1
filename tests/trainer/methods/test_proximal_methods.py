"""FedProx, Ditto and pFedMe against steps written by hand, and what they reduce to."""

from __future__ import annotations

import pytest
import torch

from tests.trainer.methods.by_hand import batches_of, gradients_of, mean_of, moved, named, shares_of
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
    train,
    view_of,
)
from trainer.engine.base import Client, Engine, RoundKey
from trainer.methods.base import State
from trainer.methods.names import part_of, prefixed

ENGINES = pytest.mark.parametrize("engine", [LOOP, COHORT], ids=["loop", "cohort"])


def proximal_path(start: State, anchor: State, pull: float, client: Client, number: int, maximum: float | None = None) -> State:
    weights = start
    for batch in batches_of(client, number):
        gradients = gradients_of(weights, batch)
        gradients = {name: each + pull * (weights[name] - anchor[name]) for name, each in gradients.items()}
        norm = float(torch.cat([each.flatten() for each in gradients.values()]).norm())
        factor = 1.0 if maximum is None else min(1.0, maximum / norm)
        weights = moved(weights, gradients, 0.1 * factor)
    return weights


@ENGINES
def test_fedprox_without_a_pull_is_fedavg_bit_for_bit(engine: Engine) -> None:
    one, other = (train(method, engine, make_clients()) for method in (bound("fedprox", mu=0.0), bound("fedavg")))
    assert_equal(one.server, other.server)


@pytest.mark.parametrize(("clip_norm", "maximum"), [(0.0, None), (0.3, 0.3)])
def test_fedprox_takes_the_steps_of_its_objective(clip_norm: float, maximum: float | None) -> None:
    method, clients = bound("fedprox", mu=2.0, clip_norm=clip_norm), make_clients()
    start = begin(method, clients)
    ends = [proximal_path(start, start, 2.0, client, 0, maximum) for client in clients]
    assert_close(train(method, WRITTEN, clients, rounds=1).server, mean_of(ends, shares_of(clients)), 1e-12)


@ENGINES
def test_the_global_part_of_ditto_is_fedavg_bit_for_bit(engine: Engine) -> None:
    one, other = (train(bound(name), engine, make_clients()) for name in ("ditto", "fedavg"))
    assert_equal(one.server, other.server)


def test_personal_weights_of_ditto_go_on_from_round_to_round_and_are_pulled_to_what_was_received() -> None:
    method, clients = bound("ditto", pull=0.7, clip_norm=0.0), make_clients()
    start = begin(method, clients)
    first = train(method, WRITTEN, clients, rounds=1)
    second_round = WRITTEN.run_round(method, first.server, clients, RoundKey(SEED, 1), first.private)
    personal = proximal_path(start, start, 0.7, clients[0], 0)
    assert_close(part_of(first.private["client-0"], "personal."), personal, 1e-12)
    personal = proximal_path(personal, first.server, 0.7, clients[0], 1)
    assert_close(part_of(second_round.private["client-0"], "personal."), personal, 1e-12)


@pytest.mark.parametrize("name", ["ditto", "pfedme"])
def test_participants_use_their_own_network_and_others_the_global_one(name: str) -> None:
    method, clients = bound(name), make_clients()
    states = train(method, WRITTEN, clients, rounds=1)
    samples = clients[0].samples
    own = part_of(states.private["client-0"], "personal.")
    assert torch.equal(
        method.predictor(states.server, view_of(clients[0], states.private["client-0"]))(samples), method.logits(own, samples)
    )
    assert torch.equal(method.predictor(states.server, view_of(clients[0]))(samples), method.logits(states.server, samples))
    assert not torch.equal(method.logits(own, samples), method.logits(states.server, samples))


@pytest.mark.parametrize("name", ["ditto", "pfedme"])
def test_personal_weights_do_not_travel(name: str) -> None:
    method, clients = bound(name), make_clients()
    updates = WRITTEN.run_round(method, begin(method, clients), clients, RoundKey(SEED, 0)).updates
    assert set(updates.state) == set(method.initial_state(0))


def test_pfedme_reaches_the_proximal_point_and_moves_local_weights_towards_it() -> None:
    method, clients = bound("pfedme", inner_steps=200, pull=15.0, learning_rate=0.02, personal_rate=0.05, clip_norm=0.0), make_clients()
    local = method.initial_state(1)
    batch = batches_of(clients[0], 0)[0]
    end, _ = method.envelope_step(local | prefixed("personal.", local), named(batch), method.context(local))
    personal = part_of(end, "personal.")
    slopes = gradients_of(personal, batch)
    for name, tensor in local.items():
        torch.testing.assert_close(slopes[name], 15.0 * (tensor - personal[name]), rtol=0, atol=1e-9)
        torch.testing.assert_close(end[name], tensor - 0.02 * 15.0 * (tensor - personal[name]), rtol=0, atol=1e-12)
        torch.testing.assert_close(tensor - end[name], 0.02 * slopes[name], rtol=0, atol=1e-9)  # the envelope's gradient


def test_pfedme_by_hand_from_the_received_weights() -> None:
    method, clients = bound("pfedme", pull=3.0, learning_rate=0.2, personal_rate=0.05, server_rate=0.4, clip_norm=0.0), make_clients()
    start = begin(method, clients)
    ends = []
    for client in clients:
        local, personal = start, start
        for batch in batches_of(client, 0):
            for _ in range(2):
                gradients = gradients_of(personal, batch)
                personal = {name: each - 0.05 * (gradients[name] + 3.0 * (each - local[name])) for name, each in personal.items()}
            local = {name: each - 0.2 * 3.0 * (each - personal[name]) for name, each in local.items()}
        ends.append(local)
    mean = mean_of(ends, shares_of(clients))
    noise = {client.device: prefixed("personal.", {key: torch.randn_like(each) for key, each in start.items()}) for client in clients}
    for private in ({}, noise):  # what was kept is read at prediction alone
        found = train(method, WRITTEN, clients, rounds=1, start=States(start, private))
        assert_close(found.server, {name: 0.6 * tensor + 0.4 * mean[name] for name, tensor in start.items()}, 1e-12)
