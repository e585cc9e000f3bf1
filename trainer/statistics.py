"""What a handful of runs says about a method: bootstrap intervals of a mean, differences over common seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InputError


class Interval(NamedTuple):
    """A mean and the interval around it.

    Attributes:
        mean: Mean of the values.
        low: Lower end.
        high: Upper end.
    """

    mean: float
    low: float
    high: float


def bootstrap_interval(
    values: Sequence[float] | NDArray[np.floating], level: float = 0.95, resamples: int = 10000, seed: int = 0
) -> Interval:
    """Return the mean of values and its percentile bootstrap interval; the same call gives the same interval.

    One value is its own interval, which says nothing: show none. NaN among the values gives NaN. With few values the interval
    is somewhat too narrow, as every percentile interval is.

    Args:
        values: One number for each seed, or for each of whatever was repeated, (N,).
        level: Share of resampled means that the interval holds.
        resamples: Number of resampled means.
        seed: Seed of the resampling.

    Raises:
        InputError: There are no values, or the level or the number of resamples makes no sense.
    """
    numbers = np.asarray(values, np.float64)  # (N,)
    if numbers.ndim != 1 or not len(numbers):
        raise InputError("an interval needs values", expected="a list of one number or more", got=f"shape {numbers.shape}")
    if not 0 < level < 1:
        raise InputError("level is out of range", expected="more than 0, less than 1", got=level)
    if resamples < 1:
        raise InputError("resamples is out of range", expected="1 or more", got=resamples)
    generator = np.random.Generator(np.random.Philox(key=np.uint64(seed)))
    drawn = generator.integers(len(numbers), size=(resamples, len(numbers)))
    low, high = np.quantile(numbers[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(numbers.mean()), float(low), float(high))


def paired_differences(values: Mapping[int, float], reference: Mapping[int, float]) -> dict[int, float]:
    """Return value minus reference for each seed that both have, seeds ascending.

    Runs of one seed share their cut of the data, so their difference is free of what the cut does to both.

    Args:
        values: Result of one method by seed.
        reference: Result of the method that it is compared with, by seed.
    """
    return {seed: values[seed] - reference[seed] for seed in sorted(values.keys() & reference.keys())}
