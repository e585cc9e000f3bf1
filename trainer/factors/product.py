"""The best pair of rank R for a product of wide factors: the truncated singular value decomposition, without the big matrix.

With B = Q_B R_B and A^T = Q_A R_A, the singular values of B A are those of the small core R_B R_A^T, and its singular vectors
are turned back by Q_B and Q_A. The truncation is optimal in the Frobenius norm (Eckart and Young 1936). FlexLoRA (Bai et al.,
arXiv 2402.11505) truncates the same sum, formed densely.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protocol.errors import InputError
from trainer.factors.pair import Factors, stacked
from trainer.factors.subspace import krylov_pair

Algorithm = Literal["automatic", "exact", "iterated"]
Split = Literal["balanced", "into_b"]
WIDE = 0.25  # of the layer's smaller side: a wider stack is iterated,
ROOM = 8  # where the stack and the layer have so many times the wanted rank


@dataclass(frozen=True, eq=False)
class Triplets:
    """Leading singular triplets of a product, values descending; in each column of U the largest entry is positive.

    Attributes:
        left: U, (*, O, K), orthonormal columns.
        values: (*, K), at least 0.
        right: V^T, (*, K, I), orthonormal rows.
    """

    left: Tensor
    values: Tensor
    right: Tensor


def singular_triplets(factors: Factors, rank: int, algorithm: Algorithm = "automatic") -> Triplets:
    """Return the first min(rank, R, O, I) singular triplets of B A.

    Args:
        factors: The pair.
        rank: How many are wanted, at least 1.
        algorithm: ``exact`` is QR and a small SVD; ``iterated`` is randomised and within 0.1 % of the least error;
            ``automatic`` iterates where the factors are wide for the layer, and is exact where that takes too long.

    Raises:
        InputError: The rank is below 1, or ``iterated`` has no room.
    """
    if rank < 1:
        raise InputError("the rank of a truncation is wrong", expected="at least 1", got=rank)
    smallest = min(factors.rank, factors.outputs, factors.inputs)
    wide = factors.rank > WIDE * min(factors.outputs, factors.inputs) and ROOM * rank <= smallest
    iterated = krylov_pair(factors, rank) if algorithm == "iterated" or (algorithm == "automatic" and wide) else None
    if algorithm == "iterated" and iterated is None:
        raise InputError("the iteration has no room", expected=f"a rank far below {smallest}", got=rank, hint="take the exact algorithm")
    left, values, right = _all_triplets(factors if iterated is None else iterated)
    signs = _signs(left[..., :rank])  # (*, 1, K)
    return Triplets(left[..., :rank] * signs, values[..., :rank], right[..., :rank, :] * signs.mT)


def best_of_rank(factors: Factors, rank: int, split: Split = "balanced", algorithm: Algorithm = "automatic") -> Factors:
    """Return the pair of rank exactly ``rank`` whose product is closest to B A in the Frobenius norm.

    Where B A has a lower rank, the rest of both factors is zero; such rows get no gradient under ``balanced``.

    Args:
        factors: The pair to truncate, or to pad.
        rank: Rank of the result.
        split: ``balanced`` gives both factors the root of each singular value; ``into_b`` gives B all of it, as FlexLoRA.
        algorithm: As ``singular_triplets``.

    Raises:
        InputError: The rank is below 1.
    """
    found = singular_triplets(factors, rank, algorithm)
    roots = found.values.sqrt() if split == "balanced" else torch.ones_like(found.values)  # (*, K)
    a = roots[..., :, None] * found.right  # (*, K, I)
    b = found.left * (found.values.sqrt() if split == "balanced" else found.values)[..., None, :]  # (*, O, K)
    return padded(Factors(a, b), rank)


def aggregate_products(clients: Sequence[Factors], weights: Tensor, rank: int, algorithm: Algorithm = "automatic") -> Factors:
    """Return the pair of rank ``rank`` closest to sum_i p_i B_i A_i, balanced.

    Args:
        clients: M pairs of one layer shape (leading axes: layers); ranks may differ.
        weights: (M,), such as sample counts.
        rank: Rank of the result.
        algorithm: As ``singular_triplets``.

    Raises:
        InputError: As ``stacked`` and ``best_of_rank``.
    """
    return best_of_rank(stacked(clients, weights), rank, algorithm=algorithm)


def padded(factors: Factors, rank: int) -> Factors:
    """Return the same product at a higher rank: rows of A and columns of B that are zero.

    Raises:
        InputError: The rank is below that of the factors.
    """
    more = rank - factors.rank
    if more < 0:
        raise InputError("factors cannot be padded to a lower rank", expected=f"at least {factors.rank}", got=rank)
    return Factors(torch.nn.functional.pad(factors.a, (0, 0, 0, more)), torch.nn.functional.pad(factors.b, (0, more)))


def leading(factors: Factors, rank: int) -> Factors:
    """Return the first rows of A and columns of B, padded with zeros where there are fewer (HetLoRA's distribution)."""
    return padded(Factors(factors.a[..., :rank, :], factors.b[..., :rank]), rank)


def _all_triplets(factors: Factors) -> tuple[Tensor, Tensor, Tensor]:
    """Return all singular triplets by QR of both factors and SVD of the core."""
    left, left_core = torch.linalg.qr(factors.b)  # (*, O, k), (*, k, R)
    right, right_core = torch.linalg.qr(factors.a.mT)  # (*, I, l), (*, l, R)
    inner_left, values, inner_right = torch.linalg.svd(left_core @ right_core.mT, full_matrices=False)
    return left @ inner_left, values, inner_right @ right.mT


def _signs(left: Tensor) -> Tensor:
    """Return for each column the sign of its entry of largest size, (*, 1, K); a zero column counts as positive."""
    at = left.abs().argmax(-2, keepdim=True)  # (*, 1, K)
    return torch.where(left.gather(-2, at) < 0, -1.0, 1.0).to(left.dtype)
