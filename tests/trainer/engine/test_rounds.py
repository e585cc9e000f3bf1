"""Rounds on every engine: the same numbers whatever runs them, private states with their owners, nothing of the caller's changed."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from edge_runtime.sampling import ClassIndex
from tests.trainer.engine.toys import NoSteps, OnceBeforeSteps, Private, Toy, TwoArchitectures
from tests.trainer.methods.small_federation import SEED, TASK, assert_close, assert_equal, make_clients
from trainer.data.dataset import Dataset
from trainer.data.federation import SplitSettings
from trainer.engine.base import Client, Engine, RoundKey, RoundResult, draw_batches
from trainer.engine.cohort import CohortEngine
from trainer.engine.loop import LoopEngine
from trainer.methods.base import Method, State, Task
from trainer.methods.fedavg import FedAvg, FedAvgMethod
from trainer.methods.registry import METHODS
from trainer.optimisation import log_frequencies
from trainer.simulation import Execution, Federation, select_cohort

ENGINES: dict[str, Engine] = {
    "written": LoopEngine(traced=False),
    "loop": LoopEngine(),
    "cohort of all": CohortEngine(chunk_size=5),
    "cohort of two": CohortEngine(chunk_size=2),
    "cohort of one": CohortEngine(chunk_size=1),
}
SIZES = (20, 13, 31, 5, 16)  # 3, 2, 4, 1 and 2 batches of 8 a pass; the last of the first four are short


@cache
def passes_method(*, balanced: float = 0.0) -> FedAvgMethod:
    return FedAvg(model="mlp-6", local_epochs=2, batch_size=8, balanced_softmax=balanced).bind(TASK, torch.float64)


def rounds(method: Method, engine: Engine, clients: list[Client], count: int = 2) -> tuple[State, dict[str, State], list[RoundResult]]:
    """Run some rounds; whatever an engine was given must stay as it is."""
    server, results = method.initial_state(1), []
    private: dict[str, State] = {}
    for number in range(count):
        before = {name: tensor.clone() for name, tensor in server.items()}
        kept = {device: {name: tensor.clone() for name, tensor in own.items()} for device, own in private.items()}
        data = [client.samples.clone() for client in clients]
        result = engine.run_round(method, server, clients, RoundKey(SEED, number), private)
        assert_equal(before, server)
        for device, own in kept.items():
            assert_equal(own, private[device])
        assert all(torch.equal(one, client.samples) for one, client in zip(data, clients, strict=True))
        results.append(result)
        server, private = method.aggregate(server, result.updates), {**private, **result.private}
    return server, private, results


@cache
def reference(balanced: float) -> tuple[State, list[RoundResult]]:
    server, _, results = rounds(passes_method(balanced=balanced), ENGINES["written"], make_clients(SIZES))
    return server, results


@pytest.mark.parametrize("balanced", [0.0, 1.0])
@pytest.mark.parametrize("name", list(ENGINES)[1:])
def test_passes_over_unequal_clients_are_the_same_on_every_engine(name: str, balanced: float) -> None:
    server, expected = reference(balanced)
    clients = make_clients(SIZES)
    found, _, results = rounds(passes_method(balanced=balanced), ENGINES[name], clients[::-1])
    assert_close(server, found, 1e-10)
    for one, other in zip(expected, results, strict=True):
        assert one.local_steps == other.local_steps == 2 * (3 + 2 + 4 + 1 + 2)
        assert one.updates.devices == other.updates.devices == tuple(sorted(client.device for client in clients))
        assert one.updates.sample_counts.tolist() == other.updates.sample_counts.tolist() == list(SIZES)
        torch.testing.assert_close(one.losses, other.losses, rtol=1e-10, atol=1e-10)
        assert_close(one.updates.state, other.updates.state, 1e-10)


@pytest.mark.parametrize("balanced", [0.0, 1.0])
def test_passes_are_those_of_a_loop_by_hand(balanced: float) -> None:
    """One client whose last batch is short, with torch's own loss, autograd and slices instead of padding."""
    method, (client,) = passes_method(balanced=balanced), make_clients((13,))
    state = method.initial_state(1)
    found = LoopEngine().run_round(method, state, [client], RoundKey(SEED, 0))
    network, losses = method.network_with(state), []
    batches = draw_batches(method.train_phase(method.step), client, RoundKey(SEED, 0), torch.float64)
    for samples, labels, weights in zip(batches["samples"], batches["labels"], batches["weights"], strict=True):
        size = int(weights.sum())
        parameters = [parameter.requires_grad_() for parameter in network.parameters()]
        logits, own = network(samples[:size]), labels[:size]
        shift = torch.log(torch.bincount(own, minlength=3).to(torch.float64) / size + 1e-4)
        loss = torch.nn.functional.cross_entropy(logits + balanced * shift, own)
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.sqrt(sum((each.square().sum() for each in gradients), torch.zeros(())))
        factor = min(1.0, 5.0 / float(norm))
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(0.1 * factor * gradient)
        losses.append(float(loss.detach()))
    assert found.local_steps == len(losses) == 4
    assert found.loss == pytest.approx(float(np.mean(losses)), rel=1e-10)
    expected = {name: parameter.detach() for name, parameter in network.named_parameters()}
    assert_close(expected, {name: tensor[0] for name, tensor in found.updates.state.items()}, 1e-10)


def test_padding_is_no_sample_of_any_class() -> None:
    labels, weights = torch.tensor([1, 1, 2, 0, 0]), torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0])
    padded = log_frequencies(labels, torch.zeros(5, 3), weights)
    torch.testing.assert_close(padded, log_frequencies(labels[:3], torch.zeros(3, 3)))


TOYS: dict[str, Method] = {"toy": Toy(), "two architectures": TwoArchitectures(), "private": Private(), "once": OnceBeforeSteps()}


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("engine", list(ENGINES)[1:])
def test_every_kind_of_method_is_the_same_on_every_engine(name: str, engine: str) -> None:
    method, clients = TOYS[name], make_clients(SIZES)
    server, private, results = rounds(method, ENGINES["written"], clients)
    found, own, other = rounds(method, ENGINES[engine], clients[2:] + clients[:2])
    assert_close(server, found, 1e-12)
    assert private.keys() == own.keys()
    for device, kept in private.items():
        assert_close(kept, own[device], 1e-12)
    for one, two in zip(results, other, strict=True):
        assert one.updates.devices == two.updates.devices
        torch.testing.assert_close(one.losses, two.losses, rtol=1e-12, atol=0)
        assert_close(one.updates.state, two.updates.state, 1e-12)


def test_clients_of_one_shape_run_together_wherever_they_stand() -> None:
    engine, clients = CohortEngine(chunk_size=10), make_clients((9,) * 6)
    result = engine.run_round(TwoArchitectures(), Toy().initial_state(0), clients, RoundKey(SEED, 0))
    assert len(engine._programs._programs) == 2  # three clients each, one trace each
    assert result.updates.devices == tuple(f"client-{place}" for place in range(6))
    assert sum(len(chunk["w"]) for chunk in result.updates.chunks) == 6


@pytest.mark.parametrize("engine", ["loop", "cohort of two", "cohort of all"])
def test_private_states_come_back_to_their_owners_alone(engine: str) -> None:
    method, clients, server = Private(), make_clients(SIZES), Private().initial_state(0)
    private: dict[str, State] = {}
    turns = [(0, 1, 2), (1, 3), (4, 1, 0), (2,)]
    for number, places in enumerate(turns):
        cohort = [clients[place] for place in places]
        result = ENGINES[engine].run_round(method, server, cohort, RoundKey(SEED, number), private)
        assert set(result.private) == {client.device for client in cohort}
        private.update(result.private)
    for place, client in enumerate(clients):
        taken = 2 * sum(place in places for places in turns)
        assert private[client.device]["steps"].tolist() == [taken] * 3
        assert int(private[client.device]["seen"].min()) % 10 == pytest.approx(place, abs=9)
    for own in private.values():  # no view that keeps a whole chunk in memory
        assert all(tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() for tensor in own.values())


def test_a_private_state_starts_as_the_method_says() -> None:
    result = LoopEngine().run_round(Private(), Toy().initial_state(0), make_clients((9, 9)), RoundKey(SEED, 0))
    first, second = (result.private[f"client-{place}"]["seen"] for place in range(2))
    other = LoopEngine().run_round(Private(), Toy().initial_state(0), make_clients((9, 9)), RoundKey(SEED, 0), result.private)
    assert not torch.equal(first, second)
    assert (other.private["client-0"]["seen"] > first).all()
    assert other.private["client-0"]["steps"].tolist() == [4.0] * 3


@pytest.mark.parametrize("engine", ["written", "loop", "cohort of two"])
def test_phases_without_steps_train_nothing(engine: str) -> None:
    server = NoSteps().initial_state(0)
    result = ENGINES[engine].run_round(NoSteps(), server, make_clients((9, 12)), RoundKey(SEED, 0))
    assert result.local_steps == 0
    assert result.losses.tolist() == [0.0, 0.0]
    assert all(torch.equal(row, server["w"]) for row in result.updates.state["w"])


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold"])
@pytest.mark.parametrize("engine", [LoopEngine(), CohortEngine(chunk_size=2)], ids=["loop", "cohort"])
def test_the_server_state_is_left_alone_even_by_one_client(name: str, engine: Engine) -> None:
    method = METHODS[name](model="mlp-6", local_steps=2, batch_size=8, clip_norm=0.0).bind(TASK)
    (client,) = make_clients((20,))
    server = method.initial_state(1, {client.device: method.enrol(client.samples, client.labels)})
    before = {key: tensor.clone() for key, tensor in server.items()}
    result = engine.run_round(method, server, [client], RoundKey(SEED, 0))
    assert_equal(before, server)
    after = method.aggregate(server, result.updates)
    assert_equal(before, server)
    engine.run_round(method, after, [client], RoundKey(SEED, 1), result.private)
    assert any(not torch.equal(after[key], tensor) for key, tensor in before.items())


def image_clients(sizes: tuple[int, ...]) -> list[Client]:
    generator = np.random.default_rng(2)
    clients = []
    for place, size in enumerate(sizes):
        labels = generator.integers(0, 3, size)
        samples = torch.from_numpy(generator.integers(0, 256, (size, 8, 8)).astype(np.uint8))
        clients.append(Client(f"client-{place}", samples, torch.from_numpy(labels), ClassIndex(labels)))
    return clients


def test_dropout_masks_are_the_same_in_loop_and_cohort() -> None:
    settings = FedAvg(model="cnn", local_steps=2, batch_size=4)
    method = settings.bind(Task((8, 8), "uint8", 0.0, 255.0, ("a", "b", "c")), torch.float64)
    state, clients = method.initial_state(1), image_clients((9, 6))
    one = LoopEngine().run_round(method, state, clients, RoundKey(SEED, 0))
    two = CohortEngine().run_round(method, state, clients, RoundKey(SEED, 0))
    assert_close(one.updates.state, two.updates.state, 1e-10)
    torch.testing.assert_close(one.losses, two.losses, rtol=1e-10, atol=0)
    batches = draw_batches(method.train_phase(method.step), clients[0], RoundKey(SEED, 0), torch.float64)
    batch = {name: tensor[0] for name, tensor in batches.items()}
    without = {name: tensor for name, tensor in batch.items() if not name.startswith("dropout.")}
    assert float(method.loss(state, batch)) != float(method.loss(state, without))
    other = draw_batches(method.train_phase(method.step), clients[0], RoundKey(SEED, 1), torch.float64)
    assert not torch.equal(other["dropout.dropout_after_hidden"], batches["dropout.dropout_after_hidden"])


def test_a_partial_cohort_is_the_same_whatever_the_order() -> None:
    clients = make_clients((3,) * 10)
    seen = set()
    for number in range(20):
        chosen = [client.device for client in select_cohort(clients, 0.3, 7, number)]
        assert len(chosen) == 3
        assert chosen == [client.device for client in select_cohort(clients[::-1], 0.3, 7, number)]
        seen |= set(chosen)
    assert len(seen) == 10
    assert len(select_cohort(clients, 0.01, 7, 0)) == 1
    assert select_cohort(clients, 1.0, 7, 0) == clients
    assert [c.device for c in select_cohort(clients, 0.5, 7, 0)] != [c.device for c in select_cohort(clients, 0.5, 8, 0)]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_thousand_clients_do_not_fill_the_memory() -> None:
    """50 of 1,000 clients a round: memory after round 50 is that after round 5, but for 8 MB of an allocator's slack."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 4, 12_000)
    samples = generator.integers(0, 256, (12_000, 16), dtype=np.uint8)
    dataset = Dataset("made-up", samples, labels, ("a", "b", "c", "d"), 0.0, 255.0)
    federation = Federation(
        FedAvg(model="mlp-32", local_epochs=1, batch_size=4),
        dataset,
        split=SplitSettings(1000, 1, 1.0, 4, None, 0, partition="iid"),
        execution=Execution(CohortEngine(), fraction=0.05),
    )
    found: dict[int, int] = {}

    def after_round(result: RoundResult, progress: object) -> None:
        assert len(result.updates.devices) == 50
        found[len(found) + 1] = resident_bytes()

    federation.fit(50, after_round)
    assert found[50] - found[5] < 8e6
