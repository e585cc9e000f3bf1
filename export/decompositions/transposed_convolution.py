"""A transposed convolution whose output padding is a stride or more, which ONNX Runtime refuses, as one without padding, cut out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def convolution(
    samples: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Return the transposed convolution (B, O, *size of the output); all others are left to the exporter.

    Args:
        samples: (B, I, *size).
        weight: (I, O / groups, *kernel).
        bias: (O,), or None.
        stride: One number a spatial axis, as padding, dilation and output padding.
        padding: Pixels that are cut from either side of what all kernels reach.
        dilation: Distance of two kernel points.
        transposed: Whether the convolution is a transposed one.
        output_padding: Pixels that are added behind the last of each axis.
        groups: Groups of channels that do not mix.
    """
    if not transposed or all(added < step for added, step in zip(output_padding, stride, strict=True)):
        return NotImplemented  # left to the exporter
    zeros = [0] * len(stride)
    reached = torch.ops.aten.convolution.default(samples, weight, None, stride, zeros, dilation, True, zeros, groups)
    for axis, (cut, added) in enumerate(zip(padding, output_padding, strict=True), start=2):
        size = reached.shape[axis] - 2 * cut + added
        shown = torch.ops.aten.slice.Tensor(reached, axis, cut, cut + size)
        lacking = size - shown.shape[axis]  # pixels behind the last that any kernel reaches
        if lacking > 0:
            shown = torch.cat([shown, shown.new_zeros([*shown.shape[:axis], lacking, *shown.shape[axis + 1 :]])], dim=axis)
        reached = shown
    return reached if bias is None else reached + bias.reshape(-1, *(1 for _ in stride))
