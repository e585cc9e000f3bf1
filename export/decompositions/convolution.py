"""The gradient of a convolution, plain or transposed, in any number of dimensions, as convolutions.

The gradient of the input is the transposed convolution of the gradient of the output; the plain convolution by the kernel turned
around, which does the same at stride 1, takes up to three times as long. The gradient of the weights is one matrix product over
the pixels, of the whole batch, that each point of the kernel meets; as a convolution with batch and channels exchanged it would
have kernels as large as images.
A transposed convolution is the plain one read backwards, so its gradients are the same two with the roles exchanged.
Source: Goodfellow, Bengio, Courville, "Deep Learning", section 9.5 (equations 9.11 to 9.13).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """How a kernel walks over an image; one number a spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def convolution_backward(
    gradient: Tensor,
    samples: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of input (B, I, *size), weight and bias (O,), those that the mask asks for.

    Args:
        gradient: Of the output, (B, O, *size of the output).
        samples: The input.
        weight: (O, I / groups, *kernel), or (I, O / groups, *kernel) of a transposed convolution.
        bias_sizes: Not used: a bias is one number a channel.
        stride: One number a spatial axis, as padding and dilation.
        padding: Zeros on either side.
        dilation: Distance of two kernel points.
        transposed: Whether the convolution is a transposed one.
        output_padding: Not used: the sizes of the tensors say it.
        groups: Groups of channels that do not mix.
        output_mask: Which of the three gradients are wanted.
    """
    axes = range(gradient.dim() - 2)
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), groups)
    of_samples = of_weight = of_bias = None
    if output_mask[0]:
        back = _convolve if transposed else _convolve_back
        of_samples = back(gradient, weight, geometry, samples.shape[2:])
    if output_mask[1]:
        wide, narrow = (gradient, samples) if transposed else (samples, gradient)
        of_weight = _weight_gradient(wide, narrow, weight.shape[2:], geometry)
    if output_mask[2]:
        of_bias = gradient.sum(dim=[0, *(axis + 2 for axis in axes)])
    return of_samples, of_weight, of_bias


def _convolve(samples: Tensor, weight: Tensor, geometry: Geometry, size: Sequence[int]) -> Tensor:
    """Return the plain convolution, cut to this spatial size: output padding of a stride or more is met by windows that no sample made."""
    zeros = [0] * len(size)
    result: Tensor = torch.ops.aten.convolution.default(
        samples, weight, None, geometry.stride, geometry.padding, geometry.dilation, False, zeros, geometry.groups
    )
    for axis, length in enumerate(size, start=2):
        if result.shape[axis] != length:
            result = torch.ops.aten.slice.Tensor(result, axis, 0, length)
    return result


def _convolve_back(gradient: Tensor, weight: Tensor, geometry: Geometry, size: Sequence[int]) -> Tensor:
    """Return the transposed convolution whose result has this spatial size."""
    reach = [geometry.dilation[axis] * (weight.shape[axis + 2] - 1) for axis in range(len(size))]  # pixels from a kernel's end to end
    reached = [
        (gradient.shape[axis + 2] - 1) * geometry.stride[axis] - 2 * geometry.padding[axis] + reach[axis] + 1 for axis in range(len(size))
    ]
    missing = [whole - got for whole, got in zip(size, reached, strict=True)]  # pixels that no window reached
    result: Tensor = torch.ops.aten.convolution.default(
        gradient, weight, None, geometry.stride, geometry.padding, geometry.dilation, True, missing, geometry.groups
    )
    return result


def _weight_gradient(wide: Tensor, narrow: Tensor, kernel: Sequence[int], geometry: Geometry) -> Tensor:
    """Return the gradient (N, W / groups, *kernel) of weights that lead from ``wide`` (B, W, *) to ``narrow`` (B, N, *)."""
    groups, own = geometry.groups, wide.shape[1] // geometry.groups
    if any(geometry.padding):
        wide = torch.nn.functional.pad(wide, [width for width in reversed(geometry.padding) for _ in ("before", "after")])
    wide, narrow = wide.transpose(0, 1), narrow.transpose(0, 1)  # channels first: the product then sums over the batch too
    points = itertools.product(*map(range, kernel))
    seen = [_seen_by(wide, point, narrow.shape[2:], geometry).reshape(groups, own, -1) for point in points]  # each (G, W/G, B*P)
    patches = torch.cat(seen, dim=1)  # (G, K*W/G, B*P)
    sums = torch.bmm(narrow.reshape(groups, narrow.shape[0] // groups, -1), patches.transpose(1, 2))  # (G, N/G, K*W/G)
    return sums.reshape(narrow.shape[0], *kernel, own).movedim(-1, 1)


def _seen_by(padded: Tensor, offsets: Sequence[int], size: Sequence[int], geometry: Geometry) -> Tensor:
    """Return the pixels (W, B, *size) that one point of the kernel meets."""
    for axis, offset in enumerate(offsets):
        begin, stride = offset * geometry.dilation[axis], geometry.stride[axis]
        padded = torch.ops.aten.slice.Tensor(padded, axis + 2, begin, begin + (size[axis] - 1) * stride + 1, stride)
    return padded
