"""Draws depend on seed, round, device and purpose, and on nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.sampling import (
    PADDING,
    BatchPolicy,
    ClassIndex,
    DrawKey,
    EpisodeBatches,
    EpochBatches,
    UniformBatches,
    byte_inputs,
    normal_inputs,
)

POLICIES: list[BatchPolicy] = [
    UniformBatches(16),
    EpisodeBatches(16, 0.7, 0.2),
    EpisodeBatches(16, 1.0, 0.05),
    EpochBatches(16, 1),
    EpochBatches(7, 3),
]
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


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 4), st.integers(0, 2**63))
def test_each_pass_holds_each_sample_once(samples: int, batch_size: int, epochs: int, seed: int) -> None:
    policy, index = EpochBatches(batch_size, epochs), ClassIndex(np.zeros(samples, np.int64))
    per_pass = math.ceil(samples / batch_size)
    assert policy.steps(samples) == epochs * per_pass
    drawn = policy.draw(DrawKey(seed, 2, "a"), index, policy.steps(samples))
    assert drawn.shape == (epochs * per_pass, batch_size)
    assert drawn.dtype == np.int64
    for part in drawn.reshape(epochs, per_pass * batch_size):
        np.testing.assert_array_equal(np.sort(part[:samples]), np.arange(samples))
        assert (part[samples:] == PADDING).all()  # only the last batch of a pass is short, at its end


def test_passes_differ_and_more_steps_begin_another_pass() -> None:
    index = ClassIndex(LABELS)
    drawn = EpochBatches(10, 1).draw(DrawKey(0, 0, "a"), index, 12)
    first, second = drawn[:5].ravel(), drawn[5:10].ravel()
    assert sorted(first) == sorted(second) == list(range(50))
    assert not np.array_equal(first, second)
    assert len(set(drawn[10:].ravel())) == 20


@pytest.mark.parametrize("policy", [UniformBatches(16), EpisodeBatches(16)])
@pytest.mark.parametrize(("samples", "steps"), [(1, 1), (16, 1), (17, 2), (160, 10)])
def test_steps_of_one_pass_are_rounded_up(policy: BatchPolicy, samples: int, steps: int) -> None:
    assert policy.steps(samples) == steps


def test_byte_inputs_are_uniform_writable_and_named() -> None:
    key = DrawKey(0, 0, "a")
    drawn = byte_inputs(key, "mask", (50, 8, 256))
    assert drawn.shape == (50, 8, 256)
    assert drawn.dtype == np.uint8
    counts = np.bincount(drawn.ravel(), minlength=256)
    assert ((counts - 400) ** 2 / 400).sum() < 340  # chi-squared of 255 degrees of freedom: 99.97 %
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.02
    drawn[0, 0, 0] = 7  # torch.from_numpy warns about arrays that cannot be written to
    assert drawn.flags.writeable
    np.testing.assert_array_equal(
        byte_inputs(key, "mask", (20, 8, 256)).ravel()[1:], byte_inputs(key, "mask", (50, 8, 256))[:20].ravel()[1:]
    )
    assert not np.array_equal(drawn[1:], byte_inputs(key, "other mask", (50, 8, 256))[1:])
    assert not np.array_equal(drawn[1:], byte_inputs(DrawKey(0, 1, "a"), "mask", (50, 8, 256))[1:])
    assert byte_inputs(key, "one", (3,)).shape == (3,)


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
