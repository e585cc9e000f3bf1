"""The two trivial collapses of embeddings, and what eval mode does."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.methods.distribution_embedding import DistributionExtractor, ExtractorSize, balancing_penalty, embedding_entropy


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_all_samples_on_one_dimension_cost_balance_but_no_entropy(batch: int) -> None:
    embeddings = torch.zeros(batch, 8, dtype=torch.float64)
    embeddings[:, 3] = 1.0
    assert balancing_penalty(embeddings).item() == pytest.approx(7.0)
    assert embedding_entropy(embeddings).item() == 0.0


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_uniform_samples_cost_entropy_but_no_balance(batch: int) -> None:
    embeddings = torch.full((batch, 8), 1 / 8, dtype=torch.float64)
    assert balancing_penalty(embeddings).item() == pytest.approx(0.0)
    assert embedding_entropy(embeddings).item() == pytest.approx(math.log(8))


def test_peaked_and_balanced_costs_neither() -> None:
    embeddings = torch.eye(8, dtype=torch.float64).repeat(3, 1)
    assert balancing_penalty(embeddings).item() == pytest.approx(0.0, abs=1e-12)
    assert embedding_entropy(embeddings).item() == 0.0


def test_embeddings_lie_on_the_simplex_and_repeat_without_noise() -> None:
    torch.manual_seed(0)
    extractor = DistributionExtractor((4, 4), ExtractorSize(hidden=8, embedding=6), with_noise=True)
    x = torch.rand(9, 4, 4)
    first, second = extractor(x), extractor(x)
    assert torch.equal(first, second)
    torch.testing.assert_close(first.sum(dim=1), torch.ones(9))
    assert (first > 0).all()
    assert not torch.allclose(first, extractor(x, torch.randn(9, 6)))


def test_layer_norm_keeps_embeddings_of_different_samples_apart() -> None:
    torch.manual_seed(0)
    extractor = DistributionExtractor((4, 4), ExtractorSize(hidden=8, embedding=6), with_noise=True)
    embeddings = extractor(torch.rand(50, 4, 4))
    assert embeddings.std(dim=0).max() > 0.01


def test_large_images_are_pooled_and_others_are_left_alone() -> None:
    torch.manual_seed(0)
    pooled = DistributionExtractor((16, 20), ExtractorSize(hidden=8, embedding=6, pool=2), with_noise=False)
    assert pooled.hidden.in_features == 80
    x = torch.rand(3, 16, 20)
    expected = torch.relu(pooled.hidden(torch.nn.functional.avg_pool2d(x.unsqueeze(1), 2).flatten(1)))
    torch.testing.assert_close(pooled.features(x), expected)
    for shape in ((8, 8), (17, 16), (320,), (16, 16, 3)):
        assert DistributionExtractor(shape, ExtractorSize(pool=2), with_noise=False).pool == 1
