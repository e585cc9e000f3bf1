"""Optional blocks of a manifest: numbers that devices need and that only the server's data can give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

LARGEST_WINDOW = 100_000


@dataclass(frozen=True)
class CalibrationBlock:
    """How logits become log-probabilities under equal classes, for label-shift correction: ``scale * logits + bias``.

    Attributes:
        name: Which calibration the run chose.
        scale: Inverse temperature, above 0.
        bias: One number a class, (C,).
    """

    name: str
    scale: float
    bias: tuple[float, ...]

    def is_possible(self, classes: int) -> bool:
        """Tell whether the numbers can be a calibration of so many classes."""
        return self.scale > 0 and len(self.bias) == classes


@dataclass(frozen=True)
class DriftBlock:
    """When a device's running embedding counts as another distribution's.

    Attributes:
        statistic: ``mahalanobis``: squared distance of the running mean embedding from the one in use, in units of its variance.
        window: Samples that the running mean stands for.
        threshold: Value at which the distribution has moved.
        release: Value below which a moved distribution counts as settled: hysteresis.
        ridge: Variance added to every direction of the embedding, so that a device which saw one class is not alarmed by a stray
            sample of another.
    """

    statistic: Literal["mahalanobis"]
    window: int
    threshold: float
    release: float
    ridge: float

    def is_possible(self) -> bool:
        """Tell whether a monitor can work with these numbers."""
        return 2 <= self.window <= LARGEST_WINDOW and 0 < self.release < self.threshold and self.ridge > 0


@dataclass(frozen=True)
class SignatureBlock:
    """The parts of a distribution signature and the constants that normalise it, frozen at export.

    Attributes:
        features: Whether means and deviations of the features are in it.
        pixels: Whether statistics of the raw samples are in it.
        class_frequencies: Whether class frequencies are in it: devices then need labels.
        mean: Mean of each entry over participants, (S,).
        deviation: Standard deviation of each entry over participants, (S,), above 0.
    """

    features: bool
    pixels: bool
    class_frequencies: bool
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def is_possible(self) -> bool:
        """Tell whether a signature can be normalised by these numbers."""
        return 0 < len(self.mean) == len(self.deviation) and min(self.deviation) > 0 and math.isfinite(sum(self.mean))
