"""Random pairs of a layer that is not square, and dense float64 references."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.factors.pair import Factors

OUTPUTS, INPUTS = 11, 7

Matrix = NDArray[np.float64]


def draw(seed: int, rank: int, leading: tuple[int, ...] = (), outputs: int = OUTPUTS, inputs: int = INPUTS) -> Factors:
    generator = np.random.default_rng(seed)
    a, b = generator.normal(size=(*leading, rank, inputs)), generator.normal(size=(*leading, outputs, rank))
    return Factors(torch.from_numpy(a), torch.from_numpy(b))


def dense(pair: Factors) -> Matrix:
    return np.asarray(pair.b.numpy() @ pair.a.numpy(), np.float64)


def dense_sum(clients: Sequence[Factors], weights: Sequence[float]) -> Matrix:
    terms = [weight / sum(weights) * dense(pair) for weight, pair in zip(weights, clients, strict=True)]
    return np.asarray(sum(terms), np.float64)


def dense_best(matrix: Matrix, rank: int) -> Matrix:
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values[..., rank:] = 0
    return np.asarray(left * values[..., None, :] @ right, np.float64)
