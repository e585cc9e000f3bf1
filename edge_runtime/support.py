"""What a support set looks like, and advice to the person who collected it; nothing here stops a personalization."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.manifest import Personalization, RawInput

BEYOND = 0.01  # share of the raw range by which a float may leave it unnoticed
FLAT = 0.02  # share of the raw range below which samples say nothing, or were normalised
ENOUGH_TO_JUDGE = 8


@dataclass
class SupportStatistics:
    """Count and extremes of samples seen a batch at a time."""

    count: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf

    def add(self, samples: NDArray[np.generic]) -> None:
        """Take in samples (B, *shape), B at least 1."""
        self.count += len(samples)
        self.minimum = min(self.minimum, float(np.min(samples)))  # type: ignore[call-overload, unused-ignore]
        self.maximum = max(self.maximum, float(np.max(samples)))  # type: ignore[call-overload, unused-ignore]


@dataclass
class EmbeddingStatistics:
    """Mean and covariance of embeddings that come a batch at a time."""

    count: int = 0
    _sum: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _products: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))

    def add(self, embeddings: NDArray[np.floating]) -> None:
        """Take in embeddings (B, E)."""
        exact = embeddings.astype(np.float64)  # (B, E)
        first = self.count == 0
        self.count += len(exact)
        self._sum = exact.sum(axis=0) + (0.0 if first else self._sum)  # (E,)
        self._products = exact.T @ exact + (0.0 if first else self._products)  # (E, E)

    def mean(self) -> NDArray[np.float32]:
        """Return the mean embedding, (E,) float32."""
        return (self._sum / self.count).astype(np.float32)

    def covariance(self) -> NDArray[np.float32]:
        """Return the covariance, (E, E) float32."""
        mean = self._sum / self.count  # (E,)
        return (self._products / self.count - np.outer(mean, mean)).astype(np.float32)


def advice(statistics: SupportStatistics, raw: RawInput, way: Personalization | None) -> tuple[str, ...]:
    """Return sentences about a support set that may not serve.

    Args:
        statistics: Of the samples.
        raw: What the bundle expects.
        way: How the bundle personalises, or None.
    """
    sentences = []
    if way is not None and statistics.count < way.support_size:
        sentences.append(f"personalised from {statistics.count} samples: this bundle was evaluated with {way.support_size}")
    span = raw.maximum - raw.minimum
    found = f"{statistics.minimum:g} to {statistics.maximum:g}"
    expected = f"{raw.minimum:g} to {raw.maximum:g}"
    if statistics.maximum > raw.maximum + BEYOND * span or statistics.minimum < raw.minimum - BEYOND * span:
        sentences.append(f"samples lie in {found}, the bundle takes {expected}: feed what the training data's sensor gives")
    elif statistics.count >= ENOUGH_TO_JUDGE and statistics.maximum - statistics.minimum < FLAT * span:
        sentences.append(f"samples lie in {found} of {expected} only: were they normalised, or is the sensor dark?")
    return tuple(sentences)
