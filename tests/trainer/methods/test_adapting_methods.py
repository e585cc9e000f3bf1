"""FedAvg-FT, Per-FedAvg and Local: steps that a device takes on its own labels, written by hand."""

from __future__ import annotations

import pytest
import torch

from protocol.errors import InputError
from tests.trainer.methods.by_hand import batches_of, gradients_of, logits_of, mean_of, moved, named, shares_of
from tests.trainer.methods.small_federation import (
    LOOP,
    SEED,
    WRITTEN,
    assert_close,
    assert_equal,
    begin,
    bound,
    make_clients,
    settings_of,
    train,
    view_of,
)
from trainer.engine.base import RoundKey
from trainer.methods.adaptation import ADAPTATION_ROUND
from trainer.methods.base import State


def adapted(weights: State, steps: int, rate: float) -> torch.Tensor:
    """Return the logits of the first client's samples after steps on them."""
    client = make_clients()[0]
    for batch in batches_of(client, ADAPTATION_ROUND, steps):
        weights = moved(weights, gradients_of(weights, batch), rate)
    return logits_of(weights, client.samples)


def test_training_with_fine_tuning_is_fedavg() -> None:
    one, other = (train(bound(name), LOOP, make_clients()) for name in ("fedavg-ft", "fedavg"))
    assert_equal(one.server, other.server)


@pytest.mark.parametrize("labelled", [True, False])
def test_fine_tuning_takes_its_own_steps_at_its_own_rate(labelled: bool) -> None:
    method, client = bound("fedavg-ft", finetune_steps=7, finetune_rate=0.2, clip_norm=0.0), make_clients()[0]
    server = method.initial_state(1)
    found = method.predictor(server, view_of(client, labelled=labelled))(client.samples)
    torch.testing.assert_close(found, adapted(server, 7 if labelled else 0, 0.2), rtol=0, atol=1e-10)


def test_fine_tuning_leaves_the_server_state() -> None:
    method, client = bound("fedavg-ft"), make_clients()[0]
    server = method.initial_state(1)
    before = {name: tensor.clone() for name, tensor in server.items()}
    method.predictor(server, view_of(client))
    assert_equal(server, before)


def test_the_step_of_perfedavg_is_the_gradient_at_the_moved_point_applied_to_the_unmoved_weights() -> None:
    method, clients = bound("perfedavg", inner_rate=0.3, learning_rate=0.05, clip_norm=0.0), make_clients()
    start, ends = begin(method, clients), []
    for client in clients:
        weights = start
        for samples, labels in batches_of(client, 0, size=16):
            point = moved(weights, gradients_of(weights, (samples[:8], labels[:8])), 0.3)
            weights = moved(weights, gradients_of(point, (samples[8:], labels[8:])), 0.05)
        ends.append(weights)
    assert_close(train(method, WRITTEN, clients, rounds=1).server, mean_of(ends, shares_of(clients)), 1e-12)


def test_the_halves_of_perfedavg_are_different_samples() -> None:
    method, client = bound("perfedavg"), make_clients()[2]
    (samples, labels), weights = batches_of(client, 0, size=16)[0], method.initial_state(1)
    assert method.phases()[0].draw.batch_size == 16
    swapped = torch.cat([samples[8:], samples[:8]]), torch.cat([labels[8:], labels[:8]])
    one, other = (method.outer_step(weights, named(batch), method.context(weights))[0] for batch in ((samples, labels), swapped))
    assert not torch.equal(one["1.layers.1.bias"], other["1.layers.1.bias"])


@pytest.mark.parametrize("labelled", [True, False])
def test_perfedavg_predicts_after_a_step_on_the_devices_own_data(labelled: bool) -> None:
    method, client = bound("perfedavg", adaptation_steps=2, inner_rate=0.3, clip_norm=0.0), make_clients()[0]
    server = method.initial_state(1)
    found = method.predictor(server, view_of(client, labelled=labelled))(client.samples)
    torch.testing.assert_close(found, adapted(server, 2 if labelled else 0, 0.3), rtol=0, atol=1e-10)


def test_local_training_is_fedavg_of_one_client_and_nothing_travels() -> None:
    local, clients = bound("local"), make_clients()
    states = train(local, LOOP, clients)
    for client in clients:
        assert_equal(states.private[client.device], train(bound("fedavg"), LOOP, [client]).server)
    assert_equal(states.server, begin(local, clients))
    updates = LOOP.run_round(local, states.server, clients, RoundKey(SEED, 0)).updates
    assert updates.state == {}
    assert local.downlink(states.server, "client-0") == {}
    assert local.sizes(states.server) == {"parameters": 0, "classifier_parameters": 123}


def test_a_device_that_never_took_part_trains_from_scratch() -> None:
    method, client = bound("local", scratch_steps=5, clip_norm=0.0), make_clients()[0]
    server = method.initial_state(1)
    found = method.predictor(server, view_of(client))(client.samples)
    torch.testing.assert_close(found, adapted(server, 5, 0.1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["local", "pfedhn"])
def test_methods_without_a_network_for_new_devices_make_no_bundle(name: str) -> None:
    method = bound(name)
    with pytest.raises(InputError, match="makes no classifier"):
        method.parts(method.initial_state(0))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fedavg-ft", {"finetune_steps": 0}),
        ("fedavg-ft", {"finetune_rate": float("nan")}),
        ("fedprox", {"mu": -0.1}),
        ("ditto", {"pull": -1.0}),
        ("local", {"scratch_steps": 0}),
        ("perfedavg", {"inner_rate": 0.0}),
        ("perfedavg", {"adaptation_steps": 0}),
        ("perfedavg", {"local_epochs": 1}),
        ("pfedme", {"pull": 0.0}),
        ("pfedme", {"inner_steps": 0}),
        ("pfedme", {"learning_rate": 0.1, "pull": 15.0}),
        ("pfedme", {"server_rate": -1.0}),
        ("pfedhn", {"embedding": 0}),
        ("pfedhn", {"server_momentum": 1.0}),
        ("pfedhn", {"embedding_rate": 0.0}),
        ("fedjets", {"experts": 2, "experts_per_client": 3}),
        ("fedjets", {"warmup_rounds": 0}),
        ("fedjets", {"anchor_weight": -1.0}),
    ],
)
def test_settings_that_cannot_work_are_refused(name: str, values: dict) -> None:
    with pytest.raises(InputError):
        settings_of(name, **values)
