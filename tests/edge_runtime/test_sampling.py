"""Draws depend on seed, round, device and purpose, and on nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.sampling import BatchPolicy, ClassIndex, DrawKey, EpisodeBatches, UniformBatches, normal_inputs

POLICIES: list[BatchPolicy] = [UniformBatches(16), EpisodeBatches(16, 0.7, 0.2), EpisodeBatches(16, 1.0, 0.05)]
LABELS = np.random.default_rng(0).choice([1, 4, 7], 50, p=[0.7, 0.2, 0.1])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_does_not_depend_on_how_many_follow(policy: BatchPolicy) -> None:
    index = ClassIndex(LABELS)
    key = DrawKey(3, 8, "pi-17")
    np.testing.assert_array_equal(policy.draw(key, index, 4), policy.draw(key, index, 9)[:4])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("other", [DrawKey(4, 8, "pi-17"), DrawKey(3, 9, "pi-17"), DrawKey(3, 8, "pi-18")])
def test_seed_round_and_device_all_matter(policy: BatchPolicy, other: DrawKey) -> None:
    index = ClassIndex(LABELS)
    first = policy.draw(DrawKey(3, 8, "pi-17"), index, 5)
    np.testing.assert_array_equal(first, policy.draw(DrawKey(3, 8, "pi-17"), index, 5))
    assert not np.array_equal(first, policy.draw(other, index, 5))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(0, 2**63), st.sampled_from([0.001, 0.2, 10.0]))
def test_positions_are_always_inside(labels: list[int], seed: int, concentration: float) -> None:
    index = ClassIndex(np.array(labels))
    places = EpisodeBatches(8, 1.0, concentration).draw(DrawKey(seed, 0, "a"), index, 6)
    assert places.shape == (6, 8)
    assert places.min() >= 0
    assert places.max() < len(labels)


def test_episodes_reach_the_whole_range_of_class_mixes() -> None:
    index = ClassIndex(LABELS)
    key = DrawKey(0, 0, "a")
    episodes = LABELS[EpisodeBatches(64, 1.0, 0.2).draw(key, index, 400)]  # (400, 64)
    share = (episodes == 7).mean(axis=1)  # (400,)
    assert (share > 0.9).any()
    assert (share == 0).any()
    assert share.mean() == pytest.approx(1 / 3, abs=0.06)  # symmetric over classes, whatever the device holds most of
    uniform = LABELS[UniformBatches(64).draw(key, index, 400)]
    assert (uniform == 7).mean() == pytest.approx((LABELS == 7).mean(), abs=0.02)


def test_within_a_class_every_sample_is_drawn() -> None:
    index = ClassIndex(LABELS)
    places = EpisodeBatches(64, 1.0, 1.0).draw(DrawKey(0, 0, "a"), index, 400)
    assert len(np.unique(places)) == len(LABELS)


def test_normal_inputs_are_standard_normal_and_named() -> None:
    key = DrawKey(0, 0, "a")
    numbers = normal_inputs(key, "noise", (100, 64, 4))
    assert numbers.dtype == np.float32
    assert abs(float(numbers.mean())) < 0.03
    assert float(numbers.std()) == pytest.approx(1.0, abs=0.03)
    assert not np.array_equal(numbers, normal_inputs(key, "other", (100, 64, 4)))
    np.testing.assert_array_equal(numbers[:10], normal_inputs(key, "noise", (10, 64, 4)))


def test_known_values_stay() -> None:
    """A golden draw: a change here changes every run, and what simulator and devices have in common."""
    places = UniformBatches(8).draw(DrawKey(7, 2, "pi-17"), ClassIndex(np.zeros(1000, np.int64)), 1)
    assert places.tolist() == [[28, 750, 45, 358, 434, 194, 524, 389]]
