"""Layers with weights of each sample's own, written out in operations that take a batch of any size.

``vmap`` computes the same, but a convolution under it becomes one with as many groups as samples, which is a constant in
a graph. Here a convolution is its windows, cut out by strided slices, times a matrix per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def linear_each(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return (B, outputs) for samples (B, inputs) under weights (B, outputs, inputs) and bias (B, outputs)."""
    product = (weight @ x.unsqueeze(2)).squeeze(2)  # (B, outputs)
    return product if bias is None else product + bias


def conv2d_each(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
) -> Tensor:
    """Return (B, outputs, H', W') for images (B, channels, H, W).

    Args:
        x: Images.
        weight: (B, outputs, channels, rows, columns).
        bias: (B, outputs).
        stride: Rows and columns from one window to the next.
        padding: Rows and columns of zeros on each side.
    """
    down, right = _pair(stride)
    above, beside = _pair(padding)
    x = F.pad(x, (beside, beside, above, above))  # (B, channels, H + 2 above, W + 2 beside)
    outputs, rows, columns = weight.shape[1], weight.shape[3], weight.shape[4]
    height, width = (x.shape[2] - rows) // down + 1, (x.shape[3] - columns) // right + 1
    last_row, last_column = (height - 1) * down + 1, (width - 1) * right + 1
    windows = [x[:, :, row : row + last_row : down, at : at + last_column : right] for row in range(rows) for at in range(columns)]
    stacked = torch.stack(windows, dim=2).flatten(1, 2).flatten(2)  # (B, channels * rows * columns, H' * W')
    result = (weight.flatten(2) @ stacked).reshape(-1, outputs, height, width)  # (B, outputs, H', W')
    return result if bias is None else result + bias[:, :, None, None]


def group_norm_each(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float = 1e-5) -> Tensor:
    """Return group-normalised features (B, channels, ...), scaled by weight and shifted by bias, (B, channels) each."""
    axes = (..., *([None] * (x.dim() - 2)))
    x = F.group_norm(x, groups, eps=eps)
    x = x if weight is None else x * weight[axes]
    return x if bias is None else x + bias[axes]


class PerSampleWeights(TorchFunctionMode):
    """Inside this block, layers whose weights have one more axis in front use each sample's own."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute one function."""
        named = dict(kwargs or {})
        if func is F.linear and _axes(args, named) == 3:
            return linear_each(*args, **named)
        if func is F.conv2d and _axes(args, named) == 5:
            return _plain_conv2d(*args, **named)
        if func is F.group_norm and _has_own_scale(args, named):
            return group_norm_each(*args, **named)
        return func(*args, **named)


def _plain_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    """Return a convolution as ``nn.Conv2d`` calls it: stride, padding, dilation, groups."""
    defaults: tuple[Any, ...] = (1, 0, 1, 1)
    stride, padding, dilation, groups = (*options, *defaults[len(options) :])
    if isinstance(padding, str) or _pair(dilation) != (1, 1) or groups != 1:
        raise NotImplementedError("weights of each sample's own take no dilation, no groups and padding as a number")
    return conv2d_each(x, weight, bias, stride, padding)


def _axes(args: tuple[Any, ...], named: Mapping[str, Any]) -> int:
    """Return the number of axes of a layer's weight."""
    weight = args[1] if len(args) > 1 else named.get("weight")
    return weight.dim() if isinstance(weight, Tensor) else 0


def _has_own_scale(args: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Tell whether a normalisation's weight or bias has an axis of samples."""
    return any(isinstance(each, Tensor) and each.dim() == 2 for each in (*args[2:4], named.get("weight"), named.get("bias")))


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Return a number for both directions as two."""
    if isinstance(value, int):
        return value, value
    first, second = value
    return first, second
