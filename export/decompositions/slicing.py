"""Gradients of slices as padding, and repetition as expansion.

Written out by torch they count positions with a range and scatter into zeros, which devices do not allow and which is slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def slice_backward(gradient: Tensor, sizes: Sequence[int], axis: int, start: int, end: int, step: int) -> Any:
    """Return the gradient of the whole tensor (*sizes), given that of the slice start:end along one axis."""
    if step != 1:
        return NotImplemented  # left to torch
    axis %= len(sizes)
    length, begin = sizes[axis], start + sizes[axis] if start < 0 else start
    return _pad(gradient, axis, begin, length - begin - gradient.shape[axis])


def select_backward(gradient: Tensor, sizes: Sequence[int], axis: int, index: int) -> Tensor:
    """Return the gradient of the whole tensor (*sizes), given that of one place along an axis."""
    axis %= len(sizes)
    place = index + sizes[axis] if index < 0 else index
    return _pad(gradient.unsqueeze(axis), axis, place, sizes[axis] - place - 1)


def repeat(samples: Tensor, repeats: Sequence[int]) -> Tensor:
    """Return the tensor laid out ``repeats`` times along each axis, as torch's ``Tensor.repeat``."""
    shape = [1] * (len(repeats) - samples.dim()) + list(samples.shape)
    spaced = samples.reshape([size for length in shape for size in (1, length)])
    wide = spaced.expand([size for times, length in zip(repeats, shape, strict=True) for size in (times, length)])
    return wide.reshape([times * length for times, length in zip(repeats, shape, strict=True)])


def _pad(tensor: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Return the tensor with zeros on both sides of one axis."""
    unpadded = tensor.dim() - 1 - axis  # padding is counted from the last axis
    result: Tensor = torch.ops.aten.constant_pad_nd.default(tensor, [*([0, 0] * unpadded), before, after], 0.0)
    return result
