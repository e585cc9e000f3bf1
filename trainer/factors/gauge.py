"""What depends on the product B A alone, whichever of its many pairs (M A, B M^-1) it came as: norms, inner products, a canonical pair.

Norms go through QR and are accurate however small; inner products go through R x R Gram matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.errors import InputError
from trainer.factors.pair import Factors, difference
from trainer.factors.product import best_of_rank


def canonical(factors: Factors) -> Factors:
    """Return the pair that stands for all pairs with the same product.

    A A^T = B^T B is diagonal with the singular values in descending order; in each column of B the largest entry is positive.
    It is unique where the singular values that are not zero differ from each other.
    """
    return best_of_rank(factors, factors.rank, algorithm="exact")


def inner_product(first: Factors, second: Factors) -> Tensor:
    """Return the Frobenius inner product <B_1 A_1, B_2 A_2> = tr((B_2^T B_1)(A_1 A_2^T)), (*).

    Raises:
        InputError: The layers have different shapes.
    """
    _check_alike(first, second)
    return ((second.b.mT @ first.b) * (first.a @ second.a.mT).mT).sum((-2, -1))


def norm(factors: Factors) -> Tensor:
    """Return the Frobenius norm |B A|, (*), without cancellation."""
    left_core = torch.linalg.qr(factors.b, mode="r").R  # (*, k, R)
    right_core = torch.linalg.qr(factors.a.mT, mode="r").R  # (*, l, R)
    length: Tensor = torch.linalg.matrix_norm(left_core @ right_core.mT)  # (*)
    return length


def distance(first: Factors, second: Factors) -> Tensor:
    """Return |B_1 A_1 - B_2 A_2|, (*).

    Raises:
        InputError: The layers have different shapes.
    """
    _check_alike(first, second)
    return norm(difference(first, second))


def similarity(first: Factors, second: Factors) -> Tensor:
    """Return the cosine of two products, (*), from -1 to 1; 0 where one of them is zero."""
    sizes = norm(first) * norm(second)
    return inner_product(first, second) / torch.where(sizes > 0, sizes, torch.ones_like(sizes))


def _check_alike(first: Factors, second: Factors) -> None:
    """Refuse to compare different layers."""
    if first.layer_shape != second.layer_shape:
        raise InputError("factors are of different layers", expected=first.layer_shape, got=second.layer_shape)
