"""The gradient of max pooling over windows that neither overlap nor pad: each window's first largest pixel takes it all.

The exporter's way through indices pools twice, with a 64-bit number for each pixel, and scatters. Here each pixel is compared with
the largest of its window. Of pixels that tie, torch takes the first; so does this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def max_pool2d_backward(
    gradient: Tensor,
    samples: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Any:
    """Return the gradient (B, C, H, W) of the input, given that of the output (B, C, h, w).

    Args:
        gradient: Of the output.
        samples: The input.
        kernel_size: Size of a window, one number or two, as the next three.
        stride: Distance of windows; the size of a window when empty.
        padding: Pixels around the image.
        dilation: Distance of a window's pixels.
        ceil_mode: Whether windows may hang over the edge.
        indices: Not used.
    """
    rows, columns = int(kernel_size[0]), int(kernel_size[-1])
    height, width = gradient.shape[-2:]
    covered = (height * rows, width * columns)
    side_by_side = not len(stride) or (int(stride[0]), int(stride[-1])) == (rows, columns)
    fits = covered[0] <= samples.shape[-2] and covered[1] <= samples.shape[-1]
    if samples.dim() != 4 or not (side_by_side and fits) or any(padding) or any(step != 1 for step in dilation):
        return NotImplemented  # left to the exporter
    # Pooled once more than in the forward pass: one node of the graph after all.
    pooled = aten.max_pool2d_with_indices.default(samples, kernel_size, stride, padding, dilation, ceil_mode)[0]  # (B, C, h, w)
    size = (rows, columns)
    ranks = torch.arange(rows * columns, 0, -1, dtype=samples.dtype).reshape(rows, columns).repeat(height, width)  # (h*rows, w*columns)
    image = samples[..., : covered[0], : covered[1]]
    ranked = (image == _spread(pooled, size)).to(samples) * ranks  # the first pixel of a window ranks highest
    first = aten.max_pool2d_with_indices.default(ranked, size)[0]  # (B, C, h, w)
    spread = (ranked == _spread(first, size)).to(samples) * _spread(gradient, size)  # (B, C, h*rows, w*columns)
    missing = [whole - part for whole, part in zip(samples.shape[-2:], covered, strict=True)]
    return torch.nn.functional.pad(spread, [0, missing[1], 0, missing[0]]) if any(missing) else spread


def _spread(windows: Tensor, size: tuple[int, int]) -> Tensor:
    """Return (B, C, h * rows, w * columns) with each window's number (B, C, h, w) in all its pixels; joining copies is the quick way."""
    wide = torch.stack([windows] * size[1], dim=-1).flatten(-2)  # (B, C, h, w*columns)
    return torch.stack([wide] * size[0], dim=-2).flatten(2, 3)
