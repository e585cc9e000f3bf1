"""What holds for every registered method: engines agree, order is irrelevant, labels reach only those who may use them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.trainer.methods.small_federation import (
    COHORT,
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
from trainer.data.dataset import Dataset
from trainer.data.federation import Answers, SplitSettings
from trainer.engine.base import Engine, RoundKey
from trainer.evaluation import evaluate
from trainer.methods.registry import METHODS, method_settings, settings_as_values
from trainer.simulation import Execution, Federation


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("dtype", "plain", "tolerance"), [(torch.float64, LOOP, 1e-10), (torch.float32, WRITTEN, 1e-4)], ids=["float64", "float32"]
)
def test_engines_reach_the_same_server_and_private_states(name: str, dtype: torch.dtype, plain: Engine, tolerance: float) -> None:
    one, many = (train(bound(name, dtype), engine, make_clients()) for engine in (plain, COHORT))
    assert_close(one.server, many.server, tolerance)
    assert one.private.keys() == many.private.keys()
    for device, state in one.private.items():
        assert_close(state, many.private[device], tolerance)


@pytest.mark.parametrize("name", METHODS)
def test_steps_as_written_and_as_traced_agree(name: str) -> None:
    written, traced = (train(bound(name), engine, make_clients(), rounds=2) for engine in (WRITTEN, LOOP))
    assert_close(written.server, traced.server, 1e-12)
    assert written.private.keys() == traced.private.keys()
    for device, state in written.private.items():
        assert_close(state, traced.private[device], 1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    method = bound(name)
    first, second = (train(method, COHORT, clients) for clients in (make_clients(), make_clients()[::-1]))
    assert_equal(first.server, second.server)
    for device, state in first.private.items():
        assert_equal(state, second.private[device])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("engine", [LOOP, COHORT], ids=["loop", "cohort"])
def test_a_round_leaves_what_it_was_given(name: str, engine: Engine) -> None:
    method, clients = bound(name), make_clients()
    states = train(method, engine, clients, rounds=2)
    before = {key: tensor.clone() for key, tensor in states.server.items()}
    kept = {device: {key: tensor.clone() for key, tensor in state.items()} for device, state in states.private.items()}
    result = engine.run_round(method, states.server, clients, RoundKey(SEED, 2), states.private)
    method.aggregate(states.server, result.updates)
    assert_equal(states.server, before)
    for device, state in kept.items():
        assert_equal(states.private[device], state)


@pytest.mark.parametrize("name", ["ditto"])
def test_passes_over_unequal_clients_agree_between_engines(name: str) -> None:
    method = bound(name, local_epochs=1)
    one, many = (train(method, engine, make_clients(), rounds=2) for engine in (LOOP, COHORT))
    assert_close(one.server, many.server, 1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_settings_survive_plain_values(name: str) -> None:
    settings = settings_of(name)
    assert method_settings(name, settings_as_values(settings)) == settings


@pytest.mark.parametrize("name", METHODS)
def test_predictors_repeat_and_read_no_more_than_declared(name: str) -> None:
    method, clients = bound(name), make_clients()
    states = train(method, LOOP, clients, rounds=2)
    query = clients[1].samples
    newcomer = make_clients((20, 13, 31, 24, 17))[-1]
    first, second = (method.predictor(states.server, view_of(newcomer))(query) for _ in range(2))
    assert first.shape == (13, 3)
    assert torch.isfinite(first).all()
    assert torch.equal(first, second)
    without = method.predictor(states.server, view_of(newcomer, labelled=False))(query)
    assert torch.equal(without, first) == (method.new_device_uses != "labels")
    own = method.predictor(states.server, view_of(clients[0], states.private.get("client-0")))(query)
    assert own.shape == (13, 3)


@pytest.mark.parametrize("name", METHODS)
def test_sizes_are_known_before_anybody_enrols(name: str) -> None:
    method = bound(name)
    assert set(method.sizes(method.initial_state(0))) == {"parameters", "classifier_parameters"}


def tiny_federation(name: str) -> Federation:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 200)
    samples = (generator.integers(0, 5, (200, 4, 4)) + 5 * labels[:, None, None] * (np.arange(16).reshape(4, 4) % 3 == 1)).astype(np.uint8)
    dataset = Dataset("tiny", samples, labels, ("a", "b", "c"), 0.0, 16.0)
    split = SplitSettings(3, 2, 1.0, 20, 16, 0)
    return Federation(settings_of(name), dataset, split=split, execution=Execution(WRITTEN))


@pytest.mark.parametrize("name", METHODS)
def test_noise_for_support_labels_reaches_only_methods_that_declare_labels(name: str) -> None:
    federation = tiny_federation(name)
    fitted = federation.fit(2)
    generator = np.random.default_rng(1)
    noise = {device: generator.permutation(3)[labels] for device, labels in federation.answers.support_labels.items()}
    noisy = Answers(federation.answers.query_labels, {device: (labels + 1) % 3 for device, labels in noise.items()})
    known, unknown = (evaluate(fitted.trained, federation.data, answers, federation.split) for answers in (federation.answers, noisy))
    if federation.method.new_device_uses == "labels":
        assert known.plain.participants == unknown.plain.participants
    else:
        assert known == unknown


@pytest.mark.parametrize("name", METHODS)
def test_more_rounds_lower_the_loss(name: str) -> None:
    clients, method, engine = make_clients(), bound(name, torch.float32), COHORT
    states = train(method, engine, clients, rounds=1)
    first = engine.run_round(method, begin(method, clients), clients, RoundKey(SEED, 0)).loss
    states = train(method, engine, clients, rounds=15, start=states)
    assert engine.run_round(method, states.server, clients, RoundKey(SEED, 0), states.private).loss < first
