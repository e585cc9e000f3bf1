"""Partitions: each covers everything once, always ends, and does what its name says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.partitions.base import Cut, IndexArray
from trainer.data.partitions.registry import PARTITIONS

CLASSES, DOMAINS, SAMPLES = 4, 3, 260


def made_dataset(generator: np.random.Generator, samples: int = SAMPLES) -> Dataset:
    labels = np.r_[0:CLASSES, generator.integers(0, CLASSES, samples - CLASSES)]
    domains = np.r_[0:DOMAINS, generator.integers(0, DOMAINS, samples - DOMAINS)]
    names = tuple("abc"[:DOMAINS])
    return Dataset("made", np.zeros((samples, 1), np.uint8), labels, tuple("wxyz"), 0, 255, domains, names)


def cut_into_shares(name: str, dataset: Dataset, cut: Cut, seed: int = 0) -> list[IndexArray]:
    return PARTITIONS[name](dataset, cut, np.random.default_rng(seed))


@pytest.mark.parametrize("name", PARTITIONS)
@given(
    seed=st.integers(0, 2**32),
    clients=st.integers(CLASSES, 13),
    concentration=st.sampled_from([1e-3, 0.1, 1.0, 100.0]),
    minimum=st.integers(0, 20),
    classes=st.integers(1, CLASSES),
)
def test_a_cut_covers_everything_once_and_meets_the_minimum(
    name: str, seed: int, clients: int, concentration: float, minimum: int, classes: int
) -> None:
    dataset = made_dataset(np.random.default_rng(seed))
    shares = cut_into_shares(name, dataset, Cut(clients, minimum, concentration, classes), seed)
    assert len(shares) == clients
    assert all(share.dtype == np.int64 for share in shares)
    np.testing.assert_array_equal(np.sort(np.concatenate(shares)), np.arange(SAMPLES))
    assert min(len(share) for share in shares) >= minimum


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_largest_possible_minimum_is_met(name: str) -> None:
    shares = cut_into_shares(name, made_dataset(np.random.default_rng(0)), Cut(13, 20, 0.01, 2))
    assert {len(share) for share in shares} == {20}


@pytest.mark.parametrize("name", PARTITIONS)
def test_an_impossible_minimum_is_refused(name: str) -> None:
    with pytest.raises(DatasetError, match="too few samples"):
        cut_into_shares(name, made_dataset(np.random.default_rng(0)), Cut(13, 21, 1.0, 2))


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_same_seed_cuts_alike_and_another_one_does_not(name: str) -> None:
    dataset = made_dataset(np.random.default_rng(0))
    first, again, other = (cut_into_shares(name, dataset, Cut(6, 5, 1.0, 2), seed) for seed in (1, 1, 2))
    assert all(np.array_equal(one, two) for one, two in zip(first, again, strict=True))
    assert not all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_iid_shares_differ_by_one_sample_at_most() -> None:
    sizes = [len(share) for share in cut_into_shares("iid", made_dataset(np.random.default_rng(0)), Cut(7, 0, 1.0, 1))]
    assert max(sizes) - min(sizes) == 1


def test_quantity_skews_sizes_and_keeps_class_mixes() -> None:
    dataset = made_dataset(np.random.default_rng(0), 20_000)
    shares = cut_into_shares("quantity", dataset, Cut(5, 500, 0.5, 1))
    sizes = [len(share) for share in shares]
    assert max(sizes) > 4 * min(sizes)
    assert all(abs(np.mean(dataset.labels[share] == 0) - 1 / CLASSES) < 0.07 for share in shares)


@given(seed=st.integers(0, 2**32), clients=st.integers(2, 12), classes=st.integers(2, CLASSES))
def test_each_client_holds_so_many_classes_in_bounded_shares(seed: int, clients: int, classes: int) -> None:
    dataset = made_dataset(np.random.default_rng(seed), 4000)
    shares = cut_into_shares("classes", dataset, Cut(clients, 10, 1.0, classes), seed)
    counts = np.stack([np.bincount(dataset.labels[share], minlength=CLASSES) for share in shares])  # (M, C)
    assert (np.count_nonzero(counts, axis=1) == classes).all()
    holders = np.count_nonzero(counts, axis=0)
    assert holders.max() - holders.min() <= 1
    for place in range(CLASSES):
        held = counts[counts[:, place] > 0, place]
        assert held.max() <= 1.5 * held.min() + 3  # 0.6 / 0.4, and rounding at either end


def test_a_minimum_is_met_from_a_clients_own_classes_where_possible() -> None:
    labels = np.repeat(np.arange(4), [300, 300, 20, 20])
    dataset = Dataset("made", np.zeros((640, 1), np.uint8), labels, tuple("wxyz"), 0, 255)
    for seed in range(20):
        shares = cut_into_shares("classes", dataset, Cut(6, 60, 1.0, 2), seed)
        mixes = [set(labels[share].tolist()) for share in shares]
        assert all(len(mix) == 2 or mix >= {2, 3} for mix in mixes)  # twenty samples of both rare classes cannot be sixty


@pytest.mark.parametrize(("clients", "classes", "word"), [(6, 5, "too few classes"), (3, 1, "belong to no device")])
def test_impossible_numbers_of_classes_are_refused(clients: int, classes: int, word: str) -> None:
    with pytest.raises(DatasetError, match=word):
        cut_into_shares("classes", made_dataset(np.random.default_rng(0)), Cut(clients, 0, 1.0, classes))


@pytest.mark.parametrize("name", ["domain", "domain-dirichlet"])
def test_client_number_i_holds_domain_i_modulo_their_number(name: str) -> None:
    dataset = made_dataset(np.random.default_rng(0))
    assert dataset.domains is not None
    shares = cut_into_shares(name, dataset, Cut(7, 10, 1.0, 1))
    assert [set(dataset.domains[share].tolist()) for share in shares] == [{place % DOMAINS} for place in range(7)]


def test_domain_dirichlet_skews_classes_and_domain_does_not() -> None:
    dataset = made_dataset(np.random.default_rng(0), 6000)

    def largest_class_share(name: str) -> float:
        shares = cut_into_shares(name, dataset, Cut(18, 20, 0.1, 1))
        return float(np.mean([np.bincount(dataset.labels[share]).max() / len(share) for share in shares]))

    assert largest_class_share("domain") < 0.4
    assert largest_class_share("domain-dirichlet") > 0.5


@pytest.mark.parametrize("name", ["domain", "domain-dirichlet"])
def test_missing_or_too_many_domains_are_refused(name: str) -> None:
    plain = Dataset("made", np.zeros((9, 1), np.uint8), np.arange(9) % 2, ("a", "b"), 0, 255)
    with pytest.raises(DatasetError, match="made has no domains"):
        cut_into_shares(name, plain, Cut(3, 0, 1.0, 1))
    with pytest.raises(DatasetError, match="some domains would belong to no device"):
        cut_into_shares(name, made_dataset(np.random.default_rng(0)), Cut(2, 0, 1.0, 1))
