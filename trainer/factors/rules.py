"""How published methods aggregate the factors of clients, as functions of pairs and weights.

Weights are sample counts or any other shares; they are made to add up to one. A scale alpha / R is folded into B beforehand where it
differs between clients (``Factors.scaled``), and a weight of a linear layer is (O, I), so B A adds to it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from protocol.errors import InputError
from trainer.factors.corrector import corrected
from trainer.factors.pair import Factors, checked_weights, difference, stacked
from trainer.factors.product import best_of_rank

LORA_FAIR_RIDGE = 0.01


def fedit(clients: Sequence[Factors], weights: Tensor) -> Factors:
    """Return the means of A and of B (FedIT, Zhang et al., arXiv 2305.05644).

    Its product misses the mean product by sum_i p_i (B_i - B)(A_i - A).

    Raises:
        InputError: As ``checked_weights``, or ranks differ.
    """
    shares = checked_weights(clients, weights)
    _check_one_rank(clients)
    return Factors(_mean([each.a for each in clients], shares), _mean([each.b for each in clients], shares))


def alternating(clients: Sequence[Factors], weights: Tensor, trained: Literal["a", "b"]) -> Factors:
    """Return the mean of the factor that was trained beside the one that all share, which is exact.

    RoLoRA (Chen et al., arXiv 2502.01755) trains B and A in turn; FFA-LoRA (Sun et al., arXiv 2403.12313) only ever B.

    Raises:
        InputError: As ``fedit``, or the factor that was not trained differs between clients.
    """
    shares = checked_weights(clients, weights)
    _check_one_rank(clients)
    first = clients[0]
    frozen = [each.b if trained == "a" else each.a for each in clients]
    if not all(torch.equal(each, frozen[0]) for each in frozen):
        name = "B" if trained == "a" else "A"
        raise InputError(f"the frozen factor {name} differs between clients", expected="the one that was sent", hint="train the other only")
    if trained == "a":
        return Factors(_mean([each.a for each in clients], shares), first.b)
    return Factors(first.a, _mean([each.b for each in clients], shares))


def ffa_lora(clients: Sequence[Factors], weights: Tensor) -> Factors:
    """Return the shared A and the mean of B; errors as ``alternating``."""
    return alternating(clients, weights, trained="b")


def flora(clients: Sequence[Factors], weights: Tensor) -> Factors:
    """Return the exact sum as a stack, to be folded into the base weights before clients start from fresh factors; ranks may differ.

    Wang et al., arXiv 2409.05976; errors as ``stacked``.
    """
    return stacked(clients, weights)


def flexlora(clients: Sequence[Factors], weights: Tensor, rank: int) -> Factors:
    """Return the best pair of rank ``rank`` for the sum, A with orthonormal rows, from which a client takes its ``leading`` ones.

    Bai et al., arXiv 2402.11505, without the dense sum. Errors as ``stacked`` and ``best_of_rank``.
    """
    return best_of_rank(stacked(clients, weights), rank, split="into_b")


def lora_fair(clients: Sequence[Factors], weights: Tensor, ridge: float = LORA_FAIR_RIDGE) -> Factors:
    """Return the mean of A and the mean of B corrected towards the sum of products (arXiv 2411.14961, its Frobenius form).

    Errors as ``fedit`` and ``correction``.
    """
    return corrected(stacked(clients, weights), fedit(clients, weights), ridge)


def fedex_lora(clients: Sequence[Factors], weights: Tensor, residual_rank: int | None = None) -> tuple[Factors, Factors]:
    """Return FedIT's means and what they miss, to be folded into the base weights (Singhal et al., arXiv 2410.09432).

    Args:
        clients: M pairs of one rank.
        weights: (M,).
        residual_rank: Rank of the best approximation of the residual; None for the whole, of rank (M + 1) R.

    Raises:
        InputError: As ``fedit`` and ``best_of_rank``.
    """
    mean = fedit(clients, weights)
    residual = difference(stacked(clients, weights), mean)
    return mean, residual if residual_rank is None else best_of_rank(residual, residual_rank)


def folded(weight: Tensor, factors: Factors, scale: float = 1.0) -> Tensor:
    """Return weight + scale * B A for a linear layer's weight (*, O, I).

    Raises:
        InputError: The weight has another shape, such as that of a transposed layer.
    """
    if tuple(weight.shape) != factors.layer_shape:
        hint = "transpose the factors of a layer that multiplies from the right"
        raise InputError("factors do not fit the weight", expected=factors.layer_shape, got=tuple(weight.shape), hint=hint)
    return weight + scale * factors.product().to(weight.dtype)


def _check_one_rank(clients: Sequence[Factors]) -> None:
    """Refuse to average factors of different ranks."""
    ranks = sorted({each.rank for each in clients})
    if len(ranks) > 1:
        raise InputError("ranks differ between clients", expected="one rank", got=ranks, hint="take FLoRA, FlexLoRA or HetLoRA")


def _mean(tensors: Sequence[Tensor], shares: Tensor) -> Tensor:
    """Return the mean of tensors (*) under shares (M,), summed in float64."""
    total = sum((share * each.double() for share, each in zip(shares.tolist(), tensors, strict=True)), torch.zeros((), dtype=torch.float64))
    return total.to(tensors[0].dtype)
