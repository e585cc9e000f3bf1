"""From class scores to probabilities and to the likeliest classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.arguments import whole_number

Floats = NDArray[np.float32]


class TopK(NamedTuple):
    """The likeliest classes: names (B, K) and probabilities (B, K) float32, the likeliest first."""

    classes: NDArray[np.str_]
    probabilities: Floats


def probabilities_of(scores: Floats) -> Floats:
    """Return the softmax (B, C) of scores (B, C)."""
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))  # (B, C)
    probabilities: Floats = exponents / exponents.sum(axis=1, keepdims=True)
    return probabilities


def likeliest(scores: Floats, names: NDArray[np.str_], k: int) -> TopK:
    """Return the k likeliest of the named classes, or all where there are fewer, for scores (B, C).

    Raises:
        InputError: k is no whole number from 1.
    """
    k = whole_number(k, "the number of classes asked for")
    probabilities = probabilities_of(scores)  # (B, C)
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :k]  # (B, K)
    return TopK(names.take(order), np.take_along_axis(probabilities, order, axis=1))
