"""Intervals against closed forms, and differences that pair what belongs together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InputError
from trainer.statistics import bootstrap_interval, paired_differences

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)


def test_the_interval_of_many_normal_values_is_the_textbooks() -> None:
    values = np.random.default_rng(3).normal(5, 2, 400)
    mean, low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / math.sqrt(400)
    assert mean == pytest.approx(values.mean())
    assert low == pytest.approx(mean - half, abs=0.05 * half)
    assert high == pytest.approx(mean + half, abs=0.05 * half)


def test_two_values_resample_to_themselves_or_their_middle() -> None:
    """A quarter of the resampled means is 0, half is 1, a quarter is 2."""
    assert bootstrap_interval([0, 2]) == (1, 0, 2)
    assert bootstrap_interval([0, 2], level=0.4) == (1, 1, 1)


def test_binomial_means_follow_the_binomial_distribution() -> None:
    """Of 0, 0, 0, 0, 1 the number of ones drawn is binomial(5, 1/5): P(0) = 0.328, P(at most 2) = 0.942, P(at most 3) = 0.993."""
    assert bootstrap_interval([0, 0, 0, 0, 1]) == pytest.approx((0.2, 0, 0.6))
    assert bootstrap_interval([0, 0, 0, 0, 1], level=0.8) == pytest.approx((0.2, 0, 0.4))


@given(NUMBERS)
def test_an_interval_lies_among_its_values_and_is_the_same_each_time(values: list[float]) -> None:
    found = bootstrap_interval(values, resamples=200)
    assert found == bootstrap_interval(values, resamples=200)
    room = 1e-9 * max(map(abs, values))
    assert min(values) - room <= found.low <= found.high <= max(values) + room


@given(NUMBERS)
def test_a_wider_level_gives_a_wider_interval(values: list[float]) -> None:
    narrow, wide = (bootstrap_interval(values, level=level, resamples=200) for level in (0.5, 0.95))
    assert wide.low <= narrow.low <= narrow.high <= wide.high


def test_the_seed_decides_the_resampling() -> None:
    values = [1, 2, 4, 8, 16, 32]
    assert bootstrap_interval(values, resamples=50, seed=0) != bootstrap_interval(values, resamples=50, seed=1)


def test_one_value_is_its_own_interval_and_nan_stays_nan() -> None:
    assert bootstrap_interval([0.25]) == (0.25, 0.25, 0.25)
    assert all(math.isnan(number) for number in bootstrap_interval([0.25, math.nan]))


@pytest.mark.parametrize(
    ("values", "more"), [([], {}), ([[1.0]], {}), ([1], {"level": 0}), ([1], {"level": 1}), ([1], {"level": 95}), ([1], {"resamples": 0})]
)
def test_what_has_no_interval_is_refused(values: list[float], more: dict[str, float]) -> None:
    with pytest.raises(InputError):
        bootstrap_interval(values, **more)  # type: ignore[arg-type]  # wrong on purpose


def test_differences_pair_by_seed_and_leave_out_the_rest() -> None:
    found = paired_differences({2: 0.5, 0: 0.9, 7: 0.1}, {0: 0.6, 2: 0.75, 3: 0.2})
    assert list(found) == [0, 2]
    assert list(found.values()) == pytest.approx([0.3, -0.25])
    assert paired_differences({0: 1}, {1: 1}) == {}
