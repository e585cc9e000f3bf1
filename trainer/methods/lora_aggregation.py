"""What servers do with the low-rank factors of a round: means of tensors, and the rank-R pair nearest to a mean of products.

Notation: client k sends A_k (R, I) and B_k (O, R) of a layer; p_k are its share of the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.aggregation import client_states
from trainer.factors.pair import Factors
from trainer.factors.product import best_of_rank
from trainer.lora import FACTOR_A, FACTOR_B
from trainer.methods.base import State, Updates


class Pair(NamedTuple):
    """Factors of one layer: B (O, R) and A (R, I)."""

    b: Tensor
    a: Tensor


def sample_shares(updates: Updates) -> list[float]:
    """Return each client's share of the round's samples."""
    counts = updates.sample_counts.to(torch.float64)  # (M,)
    shares: list[float] = (counts / counts.sum()).tolist()
    return shares


def mean_of(updates: Updates, names: Iterable[str], shares: Sequence[float] | None = None) -> State:
    """Return the means of some tensors, by sample counts or other shares (M,) that add up to one; sums run in float64."""
    totals: dict[str, Tensor] = {}
    wanted = set(names)
    for share, state in zip(shares or sample_shares(updates), client_states(updates), strict=True):
        for name in wanted & state.keys():
            part = share * state[name].to(torch.float64)
            totals[name] = totals[name] + part if name in totals else part
    first = updates.chunks[0]
    return {name: total.to(first[name].dtype) for name, total in totals.items()}


def pairs_of(updates: Updates, layer: str) -> list[Pair]:
    """Return every client's factors of a layer in float64, in device order."""
    names = f"{layer}.{FACTOR_B}", f"{layer}.{FACTOR_A}"
    return [Pair(*(state[name].to(torch.float64) for name in names)) for state in client_states(updates)]


def stacked(pairs: Sequence[Pair], shares: Sequence[float]) -> Pair:
    """Return one pair whose product is the mean of products: B = [p_1 B_1 | p_2 B_2 | ...], A = [A_1; A_2; ...]."""
    return Pair(
        torch.cat([share * pair.b for share, pair in zip(shares, pairs, strict=True)], dim=1), torch.cat([pair.a for pair in pairs])
    )


def nearest_pair(pair: Pair, rank: int) -> Pair:
    """Return the pair of a rank that is nearest to a product in the Frobenius norm, as B = U S and A = V^T, the same on every machine."""
    best = best_of_rank(Factors(pair.a, pair.b), rank, split="into_b", algorithm="exact")
    return Pair(best.b, best.a)


def named(layer: str, pair: Pair, dtype: torch.dtype) -> State:
    """Return a pair as two tensors by name."""
    return {f"{layer}.{FACTOR_B}": pair.b.to(dtype), f"{layer}.{FACTOR_A}": pair.a.to(dtype)}
