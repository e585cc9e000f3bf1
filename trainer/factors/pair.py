"""A pair of thin factors, and weighted sums of such pairs as one wider pair.

Nothing here or in the modules that build on it forms the matrix B A, but for ``Factors.product``, which says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protocol.errors import InputError


@dataclass(frozen=True, eq=False)
class Factors:
    """The matrix B A of one layer, or of several layers of one shape (leading axes).

    A scale alpha / R is no part of it: bring pairs of different scales to a common one with ``scaled`` before adding them.

    Attributes:
        a: (*, R, I) floating.
        b: (*, O, R) of the same dtype.

    Raises:
        InputError: The two do not fit together.
    """

    a: Tensor
    b: Tensor

    def __post_init__(self) -> None:
        """Refuse what is no pair."""
        two = min(self.a.ndim, self.b.ndim) >= 2
        if not two or self.a.shape[:-2] != self.b.shape[:-2] or self.a.shape[-2] != self.b.shape[-1]:
            got = f"A {tuple(self.a.shape)}, B {tuple(self.b.shape)}"
            raise InputError("two factors do not fit together", expected="A (R, I) and B (O, R)", got=got)
        if not self.a.is_floating_point() or self.a.dtype != self.b.dtype:
            raise InputError("two factors have wrong dtypes", expected="one floating dtype", got=f"{self.a.dtype}, {self.b.dtype}")

    @property
    def rank(self) -> int:
        """Return R, the number of columns of B; the product may have less."""
        return self.a.shape[-2]

    @property
    def inputs(self) -> int:
        """Return I."""
        return self.a.shape[-1]

    @property
    def outputs(self) -> int:
        """Return O."""
        return self.b.shape[-2]

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """Return the shape of the product, (*, O, I)."""
        return (*self.b.shape[:-1], self.inputs)

    def product(self) -> Tensor:
        """Return B A as a full matrix, (*, O, I); for merging into a weight, which has that size already."""
        return self.b @ self.a

    def scaled(self, scale: float | Tensor) -> Factors:
        """Return the pair of scale * B A; the scale goes into B and may have the leading axes, (*, 1, 1)."""
        return Factors(self.a, self.b * scale)

    def to(self, dtype: torch.dtype) -> Factors:
        """Return the pair in another floating dtype."""
        return Factors(self.a.to(dtype), self.b.to(dtype))


def checked_weights(clients: Sequence[Factors], weights: Tensor) -> Tensor:
    """Return weights as shares p that add up to one, (M,) float64.

    Args:
        clients: One pair a client, M of them, of one layer shape; ranks may differ.
        weights: (M,), such as sample counts: at least 0, not all 0.

    Raises:
        InputError: No client, layers of different shapes, entries that are not finite, or weights that are none.
    """
    if not clients:
        raise InputError("there are no factors to aggregate", expected="at least one client")
    for index, pair in enumerate(clients):
        if pair.layer_shape != clients[0].layer_shape or pair.a.dtype != clients[0].a.dtype:
            got = f"{pair.layer_shape} {pair.a.dtype} at position {index}"
            raise InputError("factors are of different layers", expected=f"{clients[0].layer_shape} {clients[0].a.dtype}", got=got)
        if not (torch.isfinite(pair.a).all() and torch.isfinite(pair.b).all()):
            raise InputError(f"the factors at position {index} hold NaN or infinity", expected="finite numbers")
    shares = weights.to(torch.float64)
    if shares.shape != (len(clients),) or not torch.isfinite(shares).all() or bool((shares < 0).any()) or float(shares.sum()) <= 0:
        expected = f"{len(clients)} finite numbers from 0, not all 0"
        raise InputError("the weights of an aggregation are wrong", expected=expected, got=str(weights.tolist())[:200])
    return shares / shares.sum()  # (M,)


def stacked(clients: Sequence[Factors], weights: Tensor) -> Factors:
    """Return sum_i p_i B_i A_i exactly, as one pair of rank m = sum_i R_i: [p_1 B_1 | p_2 B_2 | ...] and [A_1; A_2; ...].

    FLoRA's stacking (Wang et al., arXiv 2409.05976). Clients of weight zero take no room.

    Args:
        clients: M pairs of one layer shape; ranks may differ.
        weights: (M,), such as sample counts; they need not add up to one.

    Raises:
        InputError: As ``checked_weights``.
    """
    shares = checked_weights(clients, weights).tolist()
    counted = [(share, pair) for share, pair in zip(shares, clients, strict=True) if share > 0]
    a = torch.cat([pair.a for _, pair in counted], dim=-2)  # (*, m, I)
    b = torch.cat([pair.b * share for share, pair in counted], dim=-1)  # (*, O, m)
    return Factors(a, b)


def difference(first: Factors, second: Factors) -> Factors:
    """Return first - second as one pair, whose rank is the sum of theirs."""
    return Factors(torch.cat([first.a, second.a], dim=-2), torch.cat([first.b, -second.b], dim=-1))
