"""HetLoRA (Cho et al., arXiv 2401.06432): clients of different ranks, averaged with zeros in the rows that they lack.

A client gets the ``leading`` rows of the global pair, prunes its own rank when its tail shrinks, and weighs as the norm of its product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protocol.errors import InputError
from trainer.factors.gauge import norm
from trainer.factors.pair import Factors
from trainer.factors.product import padded
from trainer.factors.rules import fedit


def hetlora(clients: Sequence[Factors], weights: Tensor) -> Factors:
    """Return the means of the zero-padded factors, of the largest rank among the clients; as biased as ``fedit``.

    Raises:
        InputError: As ``checked_weights``.
    """
    largest = max((each.rank for each in clients), default=0)
    return fedit([padded(each, largest) for each in clients], weights)


def product_norms(clients: Sequence[Sequence[Factors]]) -> Tensor:
    """Return the Frobenius norm of all products of each client together, (M,) float64.

    Args:
        clients: Per client its pairs, one for each layer or stack of layers.
    """
    squares = [sum(float(norm(pair.to(torch.float64)).square().sum()) for pair in pairs) for pairs in clients]
    return torch.tensor(squares, dtype=torch.float64).sqrt()  # (M,)


def norm_weights(clients: Sequence[Sequence[Factors]]) -> Tensor:
    """Return each client's share, (M,) float64: its ``product_norms`` over the sum of all; equal where all are zero.

    Raises:
        InputError: There is no client.
    """
    if not clients:
        raise InputError("there are no factors to aggregate", expected="at least one client")
    norms = product_norms(clients)  # (M,)
    return norms / norms.sum() if float(norms.sum()) > 0 else torch.full_like(norms, 1 / len(norms))


def tail_penalty(factors: Factors, decay: float) -> Tensor:
    """Return |A[k:]| |B[:, k:]| with k = floor(decay * R), at least 1: what a client adds to its loss so that the tail shrinks, (*)."""
    kept = _kept(factors.rank, decay)
    penalty: Tensor = torch.linalg.matrix_norm(factors.a[..., kept:, :]) * torch.linalg.matrix_norm(factors.b[..., kept:])  # (*)
    return penalty


def pruned_rank(before: Factors, after: Factors, decay: float) -> int:
    """Return the rank after local training: floor(decay * R) where the tail shrank in sum over the layers, else R.

    Raises:
        InputError: The ranks differ, or ``decay`` is outside (0, 1].
    """
    if before.rank != after.rank:
        raise InputError("ranks differ before and after training", expected=before.rank, got=after.rank)
    shrank = bool(tail_penalty(after, decay).sum() < tail_penalty(before, decay).sum())
    return _kept(after.rank, decay) if shrank else after.rank


def _kept(rank: int, decay: float) -> int:
    """Return how much of a rank is no tail."""
    if not 0 < decay <= 1:
        raise InputError("the decay of a rank is wrong", expected="above 0, at most 1", got=decay)
    return max(1, int(decay * rank))
