"""pFedHN: what travels, the server's step against autograd by hand, and the embedding of a new device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from protocol.errors import InputError
from tests.trainer.methods.by_hand import batches_of, gradients_of, loss_of, moved
from tests.trainer.methods.small_federation import COHORT, SEED, WRITTEN, States, assert_close, begin, bound, make_clients, train, view_of
from trainer.engine.base import RoundKey
from trainer.methods.base import State
from trainer.methods.names import part_of

SHAPES = {"1.layers.0.weight": (6, 16), "1.layers.0.bias": (6,), "1.layers.1.weight": (3, 6), "1.layers.1.bias": (3,)}


def generated(network: State, embedding: Tensor) -> State:
    """The hypernetwork of the tests, one hidden layer after the first, written again."""
    first = network["body.0.weight"] @ embedding + network["body.0.bias"]
    hidden = network["body.2.weight"] @ first.clamp(min=0) + network["body.2.bias"]
    outputs = [network[f"outputs.{place}.weight"] @ hidden + network[f"outputs.{place}.bias"] for place in range(4)]
    return {name: output.reshape(shape) for (name, shape), output in zip(SHAPES.items(), outputs, strict=True)}


def server_gradients(server: State, deltas: dict[str, State]) -> State:
    """Return the gradients of the mean over devices, and each embedding's own, from one backward pass a device."""
    network = {name: tensor.clone().requires_grad_() for name, tensor in part_of(server, "hypernetwork.").items()}
    found = {f"hypernetwork.{name}": torch.zeros_like(tensor) for name, tensor in network.items()}
    for device, delta in deltas.items():
        embedding = server[f"embedding.{device}"].clone().requires_grad_()
        weights = generated(network, embedding)
        product = torch.stack([(weights[name] * delta[name]).sum() for name in weights]).sum()
        *own, found[f"embedding.{device}"] = torch.autograd.grad(product, [*network.values(), embedding])
        for name, gradient in zip(network, own, strict=True):
            found[f"hypernetwork.{name}"] = found[f"hypernetwork.{name}"] + gradient / len(deltas)
    return found


def test_two_rounds_of_the_server_by_hand() -> None:
    method, clients = bound("pfedhn", server_rate=0.3, server_momentum=0.5, clip_norm=0.0), make_clients()
    server = begin(method, clients)
    states = States(server, {})
    for number, cohort in enumerate(([0, 1, 3], [1, 2])):
        chosen = [clients[place] for place in cohort]
        result = COHORT.run_round(method, states.server, chosen, RoundKey(SEED, number))
        states = States(method.aggregate(states.server, result.updates), {})
        deltas = {}
        for client in chosen:
            start = end = generated(part_of(server, "hypernetwork."), server[f"embedding.{client.device}"])
            for batch in batches_of(client, number):
                end = moved(end, gradients_of(end, batch), 0.1)
            deltas[client.device] = {name: start[name] - end[name] for name in start}
        after = dict(server)
        for name, gradient in server_gradients(server, deltas).items():
            after[f"momentum.{name}"] = 0.5 * server[f"momentum.{name}"] + gradient
            after[name] = server[name] - 0.3 * after[f"momentum.{name}"]
        server = after
        assert_close(states.server, server, 1e-10)


def test_only_classifiers_travel_and_they_begin_near_one_drawn_network() -> None:
    method, clients = bound("pfedhn"), make_clients()
    server = begin(method, clients)
    down = method.downlink(server, "client-1")
    assert {name: tuple(tensor.shape) for name, tensor in down.items()} == SHAPES
    assert_close(down, generated(part_of(server, "hypernetwork."), server["embedding.client-1"]), 1e-12)
    assert set(WRITTEN.run_round(method, server, clients, RoundKey(SEED, 0)).updates.state) == set(SHAPES)
    assert method.sizes(server)["parameters"] == 123


def test_a_device_that_did_not_enrol_is_refused() -> None:
    method = bound("pfedhn")
    with pytest.raises(InputError, match="a device that enrolled, got stranger"):
        method.downlink(begin(method, make_clients()), "stranger")


def test_a_participant_is_served_from_its_embedding() -> None:
    method, clients = bound("pfedhn"), make_clients()
    server = train(method, WRITTEN, clients, rounds=1).server
    weights = generated(part_of(server, "hypernetwork."), server["embedding.client-2"])
    found = method.predictor(server, view_of(clients[2]))(clients[2].samples)
    torch.testing.assert_close(found, method.logits(weights, clients[2].samples), rtol=0, atol=1e-12)


def test_a_new_device_fits_its_embedding_alone() -> None:
    method, newcomer = bound("pfedhn", embedding_steps=200, embedding_rate=0.5), make_clients((20, 13, 31, 24, 40))[-1]
    server = begin(method, make_clients())
    before = {name: tensor.clone() for name, tensor in server.items()}
    mean = torch.stack([tensor for name, tensor in server.items() if name.startswith("embedding.")]).mean(0)
    start = generated(part_of(server, "hypernetwork."), mean)
    unlabelled = method.predictor(server, view_of(newcomer, labelled=False))(newcomer.samples)
    torch.testing.assert_close(unlabelled, method.logits(start, newcomer.samples), rtol=0, atol=1e-12)
    fitted = method.predictor(server, view_of(newcomer))(newcomer.samples)
    assert torch.nn.functional.cross_entropy(fitted, newcomer.labels) < loss_of(start, (newcomer.samples, newcomer.labels))
    assert all(torch.equal(tensor, before[name]) for name, tensor in server.items())
