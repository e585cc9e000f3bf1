"""Federated adaptations against float64 numpy on layers that are not square, and what holds of each by itself."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from export.step_parity import check_step
from export.step_tracing import StepExample
from export.training_parts import example_batch
from export.training_step import export_step
from protocol.errors import DivergenceError, InputError, RunFolderError
from tests.trainer.methods.small_federation import COHORT, SEED, assert_equal, begin, bound, make_clients, settings_of, train, view_of
from tests.trainer.methods.test_every_method import tiny_federation
from trainer.aggregation import client_states
from trainer.engine.base import RoundKey
from trainer.factors.pair import Factors
from trainer.factors.product import best_of_rank
from trainer.factors.rules import lora_fair
from trainer.lora import LoraPattern
from trainer.methods.base import State, Updates

NAMES = ("fedit", "ffa-lora", "flora", "flexlora", "lora-fair", "fedex-lora", "rolora", "hetlora", "hyperlora")
LAYER = "1.layers.0"  # 16 inputs, 6 units: not square


@cache
def one_round(name: str, rank: int = 4) -> tuple[Any, State, Updates]:
    """Return a method, its state after two rounds, and the updates of a third from where factors B are not zero."""
    method, clients = bound(name, patterns=(LoraPattern(".*", rank, 8.0),)), make_clients()
    states = train(method, COHORT, clients, rounds=2)
    return method, states.server, COHORT.run_round(method, states.server, clients, RoundKey(SEED, 2), states.private).updates


def ideal(method: Any, server: State, updates: Updates) -> np.ndarray:
    """Return what a layer should add after the round: the mean of clients' scaled products and former changes, (O, I)."""
    shares = updates.sample_counts.double().numpy() / updates.sample_counts.sum().item()
    total = np.zeros((6, 16))
    for share, state in zip(shares, client_states(updates), strict=True):
        b, a = ({**server, **state}[f"{LAYER}.{each}"].numpy() for each in ("lora_B", "lora_A"))
        total += share * method.scale_of(LAYER) * b @ a
    return total + (server[f"change.{LAYER}.weight"].numpy() if f"change.{LAYER}.weight" in server else 0.0)


def added(method: Any, server: State) -> np.ndarray:
    """Return what the one model for everybody adds to a layer, (O, I)."""
    weights = method.start_of(server, "")
    product = method.scale_of(LAYER) * weights[f"{LAYER}.lora_B"].numpy() @ weights[f"{LAYER}.lora_A"].numpy()
    return product + (weights[f"change.{LAYER}.weight"].numpy() if f"change.{LAYER}.weight" in weights else 0.0)


@pytest.mark.parametrize("name", ["ffa-lora", "flora", "fedex-lora", "rolora"])
def test_exact_methods_add_the_mean_of_products(name: str) -> None:
    method, server, updates = one_round(name)
    assert np.abs(added(method, method.aggregate(server, updates)) - ideal(method, server, updates)).max() < 1e-12


@pytest.mark.parametrize("name", ["flexlora", "hyperlora"])
def test_the_nearest_pair_is_the_truncated_svd(name: str) -> None:
    method, server, updates = one_round(name, 1)
    u, values, v = np.linalg.svd(ideal(method, server, updates), full_matrices=False)
    assert values[1] > 1e-5  # there is something to lose
    assert np.abs(added(method, method.aggregate(server, updates)) - u[:, :1] * values[:1] @ v[:1]).max() < 1e-12


def test_fedit_loses_the_covariance_of_factors() -> None:
    method, server, updates = one_round("fedit")
    shares = updates.sample_counts.double().numpy() / updates.sample_counts.sum().item()
    b, a = (updates.state[f"{LAYER}.{each}"].numpy() for each in ("lora_B", "lora_A"))
    own_b, own_a = b - np.tensordot(shares, b, 1), a - np.tensordot(shares, a, 1)  # (M, O, R), (M, R, I)
    lost = np.tensordot(shares, own_b @ own_a, 1)
    error = ideal(method, server, updates) - added(method, method.aggregate(server, updates))
    assert np.abs(error - method.scale_of(LAYER) * lost).max() < 1e-12
    assert np.abs(error).max() > 1e-6


def random_pairs(rows: int = 7, columns: int = 5, rank: int = 2, clients: int = 3) -> list[Factors]:
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for _ in range(clients):
        b, a = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((rows, rank), (rank, columns)))
        pairs.append(Factors(a, b))
    return pairs


def nearest_pair(pair: Factors, rank: int) -> Factors:
    return best_of_rank(pair, rank, split="into_b", algorithm="exact")


def test_the_correction_of_b_is_a_ridge_regression_and_zero_after_the_optimum() -> None:
    pairs, shares = random_pairs(), [0.5, 0.3, 0.2]
    target = sum(share * pair.b.numpy() @ pair.a.numpy() for share, pair in zip(shares, pairs, strict=True))
    mean_b, mean_a = (np.tensordot(shares, torch.stack(each).numpy(), 1) for each in ([p.b for p in pairs], [p.a for p in pairs]))
    augmented = np.concatenate([mean_a.T, np.sqrt(0.01) * np.eye(2)])
    right = np.concatenate([(target - mean_b @ mean_a).T, np.zeros((2, 7))])
    expected = mean_b + np.linalg.lstsq(augmented, right, rcond=None)[0].T
    assert np.abs(lora_fair(pairs, torch.tensor(shares, dtype=torch.float64), 0.01).b.numpy() - expected).max() < 1e-12
    best = nearest_pair(Factors(torch.eye(5, dtype=torch.float64), torch.from_numpy(target)), 2)
    left = (torch.from_numpy(target) - best.b @ best.a) @ best.a.T
    assert float(left.abs().max()) < 1e-12


def test_the_nearest_pair_does_not_depend_on_the_gauge() -> None:
    (pair, *_), mixing = random_pairs(), torch.tensor([[2.0, 1.0], [0.5, 3.0]], dtype=torch.float64)
    one, other = nearest_pair(pair, 2), nearest_pair(Factors(torch.linalg.solve(mixing, pair.a), pair.b @ mixing), 2)
    assert float((one.a - other.a).abs().max()) < 1e-10
    assert float((one.b - other.b).abs().max()) < 1e-10


def test_devices_of_half_the_rank_get_the_first_half_and_are_padded() -> None:
    method, server, updates = one_round("hetlora")
    whole, half = (method.downlink(server, f"client-{place}") for place in (0, 1))
    assert torch.equal(half[f"{LAYER}.lora_A"], whole[f"{LAYER}.lora_A"][:2])
    states = list(client_states(updates))
    assert [len(state[f"{LAYER}.lora_A"]) for state in states] == [4, 2, 4, 2]
    products = [state[f"{LAYER}.lora_B"].numpy() @ state[f"{LAYER}.lora_A"].numpy() for state in states]
    shares = np.array([np.linalg.norm(product) for product in products])  # one adapted layer: its norm is the client's
    padded = [np.pad(state[f"{LAYER}.lora_A"].numpy(), ((0, 4 - len(state[f"{LAYER}.lora_A"])), (0, 0))) for state in states]
    expected = np.tensordot(shares / shares.sum(), np.stack(padded), 1)
    assert np.abs(method.aggregate(server, updates)[f"{LAYER}.lora_A"].numpy() - expected).max() < 1e-12


@pytest.mark.parametrize(("name", "trained"), [("ffa-lora", {"lora_B"}), ("rolora", {"lora_B"}), ("fedit", {"lora_A", "lora_B"})])
def test_only_what_trains_travels(name: str, trained: set[str]) -> None:
    method, server, updates = one_round(name)  # two rounds are done: rolora trains B again
    assert {each.rpartition(".")[2] for each in updates.state if "lora" in each} == trained
    assert set(method.downlink(server, "client-0")) == set(updates.state)


def test_the_backbone_never_moves_and_another_one_is_refused() -> None:
    method, server, _ = one_round("fedit")
    assert not any(name.startswith("1.layers.0.weight") for name in server)
    with pytest.raises(RunFolderError, match="backbone is not the one"):
        method.predictor({**server, "backbone_digest": torch.zeros(32, dtype=torch.uint8)}, view_of(make_clients()[0]))


def test_the_head_is_no_layer_to_adapt() -> None:
    assert bound("fedit").layers == [LAYER]
    with pytest.raises(InputError, match="matches no linear layer"):
        bound("fedit", patterns=(LoraPattern("layers.1", 2),))


@pytest.mark.parametrize("name", ["fedit", "flora", "hyperlora"])
def test_a_step_on_a_transformer_exports(name: str) -> None:
    method, clients = bound(name, torch.float32, model="tests.trainer.methods.test_lora_methods:small_transformer"), make_clients()
    server = begin(method, clients)
    state = {**method.downlink(server, "client-0"), **method.private_state(server, "client-0")}
    (phase,) = method.phases()
    example = StepExample(state, example_batch(phase, clients[0].samples, clients[0].labels), dict(method.context(server)))
    parity = check_step(phase.step, example, export_step(phase.step, example), "1.19", batch_sizes=(2, 5))
    assert parity.worst_absolute_difference < 1e-5


def small_transformer(sample_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """Return a transformer of two blocks on images of 4 x 4."""
    from trainer.models.vit import VisionTransformer

    return VisionTransformer(sample_shape, classes, patch=2, dimension=8, depth=2, heads=2, mlp_ratio=2, pool="mean")


def test_devices_that_look_alike_learn_from_each_other_and_others_do_not() -> None:
    method, server, updates = one_round("hyperlora")
    signatures = torch.zeros(4, method.signature_length)
    signatures[2:] = 3.0 / method.signature_length**0.5 * 2  # far from the first two
    starts = method.generate(server, signatures)
    targets = method._targets(starts, signatures, updates, [0, 1, 2, 3])
    name, head = f"{LAYER}.lora_A", method.head_names[0]
    moves = {key: updates.state[key] - starts[key] for key in (name, head)}
    apart = float(torch.exp(torch.tensor(-36.0 / (2 * 0.42**2 * 20.0))))
    assert torch.allclose(
        targets[name][0], starts[name][0] + moves[name][0] + moves[name][1] + apart * moves[name][2:].sum(dim=0), atol=1e-6
    )
    others = 0.2 * (moves[head][1] + apart * moves[head][2:].sum(dim=0))
    assert torch.allclose(targets[head][0], starts[head][0] + moves[head][0] + others, atol=1e-6)


def test_a_device_like_no_other_is_noticed_and_its_samples_are_routed() -> None:
    method, clients = bound("hyperlora", torch.float32), make_clients()
    server = train(method, COHORT, clients, rounds=2).server
    odd = (16 - clients[0].samples.int()).clamp(0, 16).to(torch.uint8)
    own = method._measure(clients[0].samples, None)
    assert method.novelty(server, own) < 1e-9
    assert method.novelty(server, method._measure(odd, None)) > 1.0
    eager = bound("hyperlora", torch.float32, novelty=1e-6)
    stranger = view_of(clients[0], labelled=False)
    routed = eager.predictor(server, type(stranger)("stranger", odd, None, {}, SEED))(odd)
    plain = bound("hyperlora", torch.float32, fallback="none").predictor(server, type(stranger)("stranger", odd, None, {}, SEED))(odd)
    assert routed.shape == plain.shape == (20, 3)
    assert not torch.equal(routed, plain)


def test_a_new_device_gets_what_its_samples_say_and_nothing_of_its_labels() -> None:
    method, clients = bound("hyperlora"), make_clients()
    server = train(method, COHORT, clients, rounds=2).server
    view = view_of(clients[1], labelled=False)
    same = type(view)("newcomer", clients[1].samples, None, {}, SEED)
    assert_equal(method.start_for(server, same), method.start_of(server, "client-1"))


@pytest.mark.parametrize("name", ["flexlora", "lora-fair", "hetlora"])
def test_factors_that_are_not_finite_are_a_divergence_and_no_bad_input(name: str) -> None:
    federation, wild = tiny_federation(name), settings_of(name, learning_rate=1e30, clip_norm=0.0)
    federation.method = wild.bind(federation.task)
    with pytest.raises(DivergenceError, match="training diverged in round 0, first on participant-00"):
        federation.fit(2)
