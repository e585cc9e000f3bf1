"""Truncated products against dense SVD in numpy, and what must not depend on gauge or order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import InputError
from tests.trainer.factors.pairs import INPUTS, OUTPUTS, dense, dense_best, dense_sum, draw
from trainer.factors.gauge import canonical, distance, inner_product, norm, similarity
from trainer.factors.pair import Factors, stacked
from trainer.factors.product import aggregate_products, best_of_rank, leading, padded

ranks = st.lists(st.integers(1, 5), min_size=1, max_size=5)
seeds = st.integers(0, 10_000)


@settings(max_examples=40, deadline=None)
@given(ranks, st.integers(1, 9), seeds)
def test_an_aggregate_is_the_truncated_svd_of_the_mean_product(client_ranks: list[int], rank: int, seed: int) -> None:
    clients = [draw(seed + index, each) for index, each in enumerate(client_ranks)]
    weights = np.random.default_rng(seed).uniform(0, 2, len(clients)) + 0.1
    found = aggregate_products(clients, torch.from_numpy(weights), rank)
    assert (found.rank, found.layer_shape) == (rank, (OUTPUTS, INPUTS))
    np.testing.assert_allclose(dense(found), dense_best(dense_sum(clients, list(weights)), rank), atol=1e-12)
    torch.testing.assert_close(found.a @ found.a.mT, found.b.mT @ found.b, atol=1e-11, rtol=1e-11)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 5))
def test_the_canonical_pair_forgets_the_gauge(seed: int, rank: int) -> None:
    pair = draw(seed, rank)
    gauge = torch.linalg.qr(draw(seed + 1, rank, outputs=rank, inputs=rank).b)[0] * 3.0
    turned = Factors(gauge @ pair.a, pair.b @ torch.linalg.inv(gauge))
    torch.testing.assert_close(canonical(turned).a, canonical(pair).a, atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(canonical(turned).b, canonical(pair).b, atol=1e-7, rtol=1e-7)
    np.testing.assert_allclose(dense(canonical(pair)), dense(pair), atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(seeds, st.permutations(range(4)))
def test_the_order_of_clients_does_not_matter(seed: int, order: list[int]) -> None:
    clients, weights = [draw(seed + index, 1 + index % 3) for index in range(4)], torch.tensor([1.0, 2.0, 0.0, 5.0])
    first = aggregate_products(clients, weights, 3)
    second = aggregate_products([clients[index] for index in order], weights[order], 3)
    torch.testing.assert_close(first.product(), second.product(), atol=1e-10, rtol=1e-10)


def test_layers_are_batched() -> None:
    clients = [draw(index, 3, leading=(4,)) for index in range(3)]
    found = aggregate_products(clients, torch.ones(3), 2)
    for layer in range(4):
        alone = aggregate_products([Factors(each.a[layer], each.b[layer]) for each in clients], torch.ones(3), 2)
        torch.testing.assert_close(found.product()[layer], alone.product())


def test_zero_and_deficient_factors_give_finite_pairs() -> None:
    zero = draw(1, 2).scaled(0.0)
    assert not best_of_rank(zero, 4).product().any()
    twice = draw(0, 1)
    found = aggregate_products([twice, twice, zero], torch.ones(3), 3)
    np.testing.assert_allclose(dense(found), 2 / 3 * dense(twice), atol=1e-12)
    assert torch.linalg.matrix_rank(found.product()) == 1


def spectra(kind: str, dtype: torch.dtype) -> Factors:
    generator = torch.Generator().manual_seed(3)
    draws = [[torch.randn(2, *shape, generator=generator) for shape in ((4, 96), (128, 4))] for _ in range(41)]
    common = draws.pop()
    clients = [Factors(*each) for each in draws]
    if kind == "shared":
        clients = [Factors(common[0] + 0.2 * each.a, common[1] + 0.2 * each.b) for each in clients]
    if kind == "deficient":
        clients = [clients[0]] * 40
    return stacked([each.to(dtype) for each in clients], torch.ones(40))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["independent", "shared", "deficient"])
def test_the_iteration_is_within_a_thousandth_of_the_optimum(kind: str, dtype: torch.dtype) -> None:
    stack = spectra(kind, dtype)
    found = best_of_rank(stack, 4, algorithm="iterated")
    target = dense(stack.to(torch.float64))
    error = np.linalg.norm(target - dense(found.to(torch.float64)), axis=(1, 2))
    least = np.linalg.norm(target - dense_best(target, 4), axis=(1, 2))
    tiny = 20 * torch.finfo(dtype).eps * np.linalg.norm(target, axis=(1, 2))
    assert (error <= 1.001 * least + tiny).all()
    again = best_of_rank(stack, 4, algorithm="iterated")
    assert torch.equal(again.a, found.a)


def test_norms_and_inner_products_are_those_of_the_products() -> None:
    first, second = draw(1, 3, leading=(2,)), draw(2, 5, leading=(2,))
    products = dense(first), dense(second)
    np.testing.assert_allclose(inner_product(first, second), (products[0] * products[1]).sum((1, 2)))
    np.testing.assert_allclose(norm(first), np.linalg.norm(products[0], axis=(1, 2)))
    np.testing.assert_allclose(distance(first, second), np.linalg.norm(products[0] - products[1], axis=(1, 2)))
    near = Factors(first.a, first.b * (1 + 1e-12))
    assert float(distance(first, near).max()) < 1e-10
    torch.testing.assert_close(similarity(first, first.scaled(-2.0)), -torch.ones(2, dtype=torch.float64))


def test_padding_keeps_the_product_and_leading_rows_are_the_first() -> None:
    pair = draw(0, 3)
    np.testing.assert_array_equal(dense(padded(pair, 5)), dense(pair))
    np.testing.assert_allclose(dense(leading(pair, 2)), pair.b[:, :2].numpy() @ pair.a[:2].numpy())
    with pytest.raises(InputError, match="padded to a lower rank"):
        padded(pair, 2)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="do not fit together"):
        Factors(torch.zeros(7, 2), torch.zeros(11, 2))
    with pytest.raises(InputError, match="different layers"):
        stacked([draw(0, 2), draw(0, 2, outputs=INPUTS, inputs=OUTPUTS)], torch.ones(2))
    with pytest.raises(InputError, match="NaN"):
        stacked([draw(0, 2).scaled(float("nan"))], torch.ones(1))
    for weights in (torch.ones(2), torch.zeros(1), -torch.ones(1), torch.tensor([float("inf")])):
        with pytest.raises(InputError, match="weights"):
            stacked([draw(0, 2)], weights)
    with pytest.raises(InputError, match="at least one client"):
        stacked([], torch.ones(0))
    with pytest.raises(InputError, match="at least 1"):
        best_of_rank(draw(0, 2), 0)
    with pytest.raises(InputError, match="no room"):
        best_of_rank(draw(0, 2), 2, algorithm="iterated")
