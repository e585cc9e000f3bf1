"""Each published rule against plain numpy on a layer that is not square."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from protocol.errors import InputError
from tests.trainer.factors.pairs import INPUTS, OUTPUTS, dense, dense_best, dense_sum, draw
from trainer.factors import hetlora, rules
from trainer.factors.corrector import correction
from trainer.factors.pair import Factors, stacked
from trainer.factors.product import aggregate_products, leading

COUNTS = [10.0, 30.0, 60.0]
WEIGHTS = torch.tensor(COUNTS)
SHARES = np.array(COUNTS) / 100
CLIENTS = [draw(seed, 3) for seed in range(3)]
MIXED = [draw(seed, rank) for seed, rank in enumerate((1, 2, 4))]


def test_fedit_averages_the_factors_and_misses_their_covariance() -> None:
    mean = rules.fedit(CLIENTS, WEIGHTS)
    a = sum(share * each.a.numpy() for share, each in zip(SHARES, CLIENTS, strict=True))
    b = sum(share * each.b.numpy() for share, each in zip(SHARES, CLIENTS, strict=True))
    np.testing.assert_allclose(mean.a, a)
    missing = sum(share * (each.b.numpy() - b) @ (each.a.numpy() - a) for share, each in zip(SHARES, CLIENTS, strict=True))
    np.testing.assert_allclose(dense_sum(CLIENTS, COUNTS) - dense(mean), missing, atol=1e-12)


@pytest.mark.parametrize("trained", ["a", "b"])
def test_with_one_factor_shared_averaging_the_other_is_exact(trained: str) -> None:
    shared = CLIENTS[0]
    clients = [Factors(each.a, shared.b) if trained == "a" else Factors(shared.a, each.b) for each in CLIENTS]
    found = rules.alternating(clients, WEIGHTS, trained)  # type: ignore[arg-type]
    np.testing.assert_allclose(dense(found), dense_sum(clients, COUNTS), atol=1e-12)
    if trained == "b":
        assert torch.equal(rules.ffa_lora(clients, WEIGHTS).a, shared.a)
    with pytest.raises(InputError, match="frozen factor"):
        rules.alternating(CLIENTS, WEIGHTS, trained)  # type: ignore[arg-type]


def test_flora_is_exact_at_mixed_ranks() -> None:
    stack = rules.flora(MIXED, WEIGHTS)
    assert stack.rank == 7
    np.testing.assert_allclose(dense(stack), dense_sum(MIXED, COUNTS), atol=1e-12)


def test_flexlora_is_the_truncation_of_which_every_client_takes_the_best_part() -> None:
    found = rules.flexlora(MIXED, WEIGHTS, 4)
    torch.testing.assert_close(found.a @ found.a.mT, torch.eye(4, dtype=torch.float64))
    for rank in (1, 2, 4):
        np.testing.assert_allclose(dense(leading(found, rank)), dense_best(dense_sum(MIXED, COUNTS), rank), atol=1e-12)


def test_scales_of_different_ranks_are_folded_into_b() -> None:
    scaled = [each.scaled(16 / each.rank) for each in MIXED]
    wanted = sum(share * 16 / each.rank * dense(each) for share, each in zip(SHARES, MIXED, strict=True))
    np.testing.assert_allclose(dense(rules.flora(scaled, WEIGHTS)), wanted, atol=1e-11)


def test_lora_fair_solves_its_ridge_problem() -> None:
    mean, found = rules.fedit(CLIENTS, WEIGHTS), rules.lora_fair(CLIENTS, WEIGHTS, ridge=0.3)
    a, residual = mean.a.numpy(), dense_sum(CLIENTS, COUNTS) - dense(mean)
    # The ridge as more rows of an ordinary least squares problem: [A^T; sqrt(ridge)] dB^T = [residual^T; 0].
    system, wanted = np.vstack([a.T, np.sqrt(0.3) * np.eye(3)]), np.vstack([residual.T, np.zeros((3, OUTPUTS))])
    np.testing.assert_allclose((found.b - mean.b).numpy(), np.linalg.lstsq(system, wanted, rcond=None)[0].T, atol=1e-12)
    assert torch.equal(found.a, mean.a)


def test_fedex_is_exact_in_the_layer() -> None:
    mean, residual = rules.fedex_lora(CLIENTS, WEIGHTS)
    layer = nn.Linear(INPUTS, OUTPUTS, bias=False, dtype=torch.float64)
    samples = torch.randn(5, INPUTS, dtype=torch.float64)
    plain = layer(samples)
    layer.weight.data = rules.folded(rules.folded(layer.weight.data, residual), mean)
    wanted = plain.detach().numpy() + samples.numpy() @ dense_sum(CLIENTS, COUNTS).T
    np.testing.assert_allclose(layer(samples).detach().numpy(), wanted, atol=1e-12)
    _, cut = rules.fedex_lora(CLIENTS, WEIGHTS, residual_rank=2)
    np.testing.assert_allclose(dense(cut), dense_best(dense(residual), 2), atol=1e-12)
    with pytest.raises(InputError, match="do not fit the weight"):
        rules.folded(layer.weight.T, mean)


def test_hetlora_pads_weighs_and_prunes() -> None:
    found = hetlora.hetlora(MIXED, WEIGHTS)
    a = np.zeros((4, INPUTS))
    for share, each in zip(SHARES, MIXED, strict=True):
        a[: each.rank] += share * each.a.numpy()
    np.testing.assert_allclose(found.a, a)
    norms = np.array([np.sqrt(2) * np.linalg.norm(dense(each)) for each in MIXED])
    np.testing.assert_allclose(hetlora.norm_weights([[each, each] for each in MIXED]), norms / norms.sum())
    zero = MIXED[0].scaled(0.0)
    assert hetlora.norm_weights([[zero], [zero]]).tolist() == [0.5, 0.5]
    pair = MIXED[2]
    tail = Factors(pair.a, torch.cat([pair.b[:, :3], 0.5 * pair.b[:, 3:]], -1))
    assert hetlora.pruned_rank(pair, tail, 0.75) == 3
    assert hetlora.pruned_rank(tail, pair, 0.75) == 4
    np.testing.assert_allclose(hetlora.tail_penalty(pair, 0.75), np.linalg.norm(pair.a[3]) * np.linalg.norm(pair.b[:, 3]))
    with pytest.raises(InputError, match="decay"):
        hetlora.tail_penalty(pair, 0.0)


def test_averaging_refuses_mixed_ranks() -> None:
    with pytest.raises(InputError, match=r"ranks differ between clients: expected one rank, got \[1, 2, 4\]"):
        rules.fedit(MIXED, WEIGHTS)


def test_the_correction_is_least_squares_and_zero_after_the_optimum() -> None:
    stack, mean = stacked(CLIENTS, WEIGHTS), rules.fedit(CLIENTS, WEIGHTS)
    wanted = np.linalg.lstsq(mean.a.numpy().T, (dense(stack) - dense(mean)).T, rcond=None)[0].T
    np.testing.assert_allclose(correction(stack, mean), wanted, atol=1e-11)
    assert float(correction(stack, mean).abs().max()) > 0.1
    assert float(correction(stack, aggregate_products(CLIENTS, WEIGHTS, 3)).abs().max()) < 1e-12
    dead = Factors(torch.cat([mean.a, mean.a[:1]]), torch.cat([mean.b, mean.b[:, :1]], -1))
    assert torch.isfinite(correction(stack, dead)).all()
    with pytest.raises(InputError, match="ridge"):
        correction(stack, mean, ridge=-1.0)
