"""Factors from elsewhere, held against the layers that they are for, and refused whole with a reason."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from protocol.errors import InputError
from trainer.factors.gauge import norm
from trainer.factors.pair import Factors

MAXIMUM_RANK = 1024
MAXIMUM_PRODUCT_NORM = 1e4  # Frobenius, of one layer's B A; weights of such layers have norms of tens

LayerShapes = Mapping[str, tuple[int, int]]


def check_factors(pairs: Mapping[str, Factors], layers: LayerShapes, maximum_norm: float = MAXIMUM_PRODUCT_NORM) -> None:
    """Refuse pairs that are not exactly those of the layers, or that hold what no training gives.

    Args:
        pairs: Layer name -> pair.
        layers: Layer name -> (O, I).
        maximum_norm: Largest Frobenius norm of a product.

    Raises:
        InputError: A layer is missing or unknown, a shape or rank is wrong, an entry is not finite, or a product is too large.
    """
    check_names(pairs.keys() - layers.keys(), layers.keys() - pairs.keys(), "layer")
    for name, (outputs, inputs) in layers.items():
        pair = pairs[name]
        rank = factor_rank(name, tuple(pair.a.shape), tuple(pair.b.shape), (outputs, inputs))
        if not (torch.isfinite(pair.a).all() and torch.isfinite(pair.b).all()):
            raise InputError(f"the factors of {name} hold NaN or infinity", expected="finite numbers")
        size = float(norm(pair.to(torch.float64)))
        if not size <= maximum_norm:
            expected = f"a norm of at most {maximum_norm:g}"
            raise InputError(f"the product of the factors of {name} is too large", expected=expected, got=f"{size:g} at rank {rank}")


def factor_rank(name: str, a_shape: tuple[int, ...], b_shape: tuple[int, ...], layer: tuple[int, int]) -> int:
    """Return the rank of a layer's factors by their shapes alone.

    Raises:
        InputError: They do not fit the layer (O, I) or each other, they are transposed, or the rank is outside 1 to 1024.
    """
    outputs, inputs = layer
    rank = a_shape[0] if a_shape else 0
    if a_shape == (rank, inputs) and b_shape == (outputs, rank):
        if not 1 <= rank <= MAXIMUM_RANK:
            raise InputError(f"the rank of {name} is wrong", expected=f"1 to {MAXIMUM_RANK}", got=rank)
        return rank
    expected, got = f"A (R, {inputs}) and B ({outputs}, R)", f"A {a_shape} and B {b_shape}"
    if _turned(a_shape, inputs, first=True) or _turned(b_shape, outputs, first=False):
        raise InputError(f"a factor of {name} is transposed", expected=expected, got=got, hint="store A as (R, I), B as (O, R)")
    raise InputError(f"the factors of {name} do not fit the layer", expected=expected, got=got)


def check_names(unknown: set[str], missing: set[str], kind: str) -> None:
    """Refuse names that are too many or too few.

    Raises:
        InputError: There is one; it is named.
    """
    if unknown:
        raise InputError(f"a {kind} is not known", expected=f"only the {kind}s of the model", got=min(unknown)[:100])
    if missing:
        raise InputError(f"a {kind} is missing", expected=min(missing)[:100], hint="send all of them or none")


def finite_scale(alpha: float, rank: int) -> float:
    """Return alpha / rank.

    Raises:
        InputError: Alpha is not a positive finite number.
    """
    if not 0 < alpha < math.inf:
        raise InputError("the alpha of an adapter is wrong", expected="a finite number above 0", got=alpha)
    return alpha / rank


def pair_of(a: Tensor, b: Tensor) -> Factors:
    """Return two float tensors of any floating dtype as a float32 pair."""
    return Factors(a.to(torch.float32), b.to(torch.float32))


def _turned(shape: tuple[int, ...], fixed: int, *, first: bool) -> bool:
    """Return whether a shape has the layer's size on the axis where the rank belongs, and only there."""
    return len(shape) == 2 and (shape[0 if first else 1] == fixed) and shape[1 if first else 0] != fixed
