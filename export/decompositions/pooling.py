"""Average pooling as products with two small constant matrices, one for rows and one for columns.

A mean over windows is separable: pooled = R x C^T, with R (h, H) holding each window's shares. So the gradient is
R^T g C, for fixed and for adaptive windows alike, with padding, ceiling and any way of counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def avg_pool2d(
    samples: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the windows' sums over a divisor of one's own, (B, C, h, w); the exporter loses that divisor, other means it translates."""
    if divisor_override is None:
        return NotImplemented  # left to the exporter
    kernels, pads = _pair(kernel_size), _pair(padding)
    strides = _pair(stride) if len(stride) else kernels
    members = []
    for axis in (0, 1):
        whole = int(samples.shape[axis - 2])
        sizes = whole, _windows(whole, kernels[axis], strides[axis], pads[axis], ceil_mode=ceil_mode)
        members.append(_binary(_window_shares(sizes, kernels[axis], strides[axis], pads[axis], count_padding=True)).to(samples))
    return members[0] @ samples @ members[1].T / divisor_override  # (B, C, h, w)


def avg_pool2d_backward(
    gradient: Tensor,
    samples: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Return the gradient (B, C, H, W) of the input, given that of the output (B, C, h, w)."""
    kernels, pads = _pair(kernel_size), _pair(padding)
    strides = _pair(stride) if len(stride) else kernels
    matrices = []
    for axis in (0, 1):
        sizes = int(samples.shape[axis - 2]), int(gradient.shape[axis - 2])
        shares = _window_shares(sizes, kernels[axis], strides[axis], pads[axis], count_padding=count_include_pad)
        matrices.append(_binary(shares) if divisor_override else shares)
    spread = _spread(gradient, matrices[0], matrices[1])
    return spread / divisor_override if divisor_override else spread


def adaptive_avg_pool2d(samples: Tensor, output_size: Sequence[int]) -> Tensor:
    """Return the means (B, C, h, w) over windows that share out (B, C, H, W) evenly."""
    rows, columns = (_adaptive_shares(int(samples.shape[axis - 2]), int(output_size[axis])) for axis in (0, 1))
    return rows.to(samples) @ samples @ columns.to(samples).T


def adaptive_avg_pool2d_backward(gradient: Tensor, samples: Tensor) -> Tensor:
    """Return the gradient (B, C, H, W) of the input, given that of the output (B, C, h, w)."""
    rows, columns = (_adaptive_shares(int(samples.shape[axis]), int(gradient.shape[axis])) for axis in (-2, -1))
    return _spread(gradient, rows, columns)


def _spread(gradient: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return rows^T g columns, (B, C, H, W)."""
    return rows.to(gradient).T @ gradient @ columns.to(gradient)


def _windows(whole: int, kernel: int, stride: int, padding: int, *, ceil_mode: bool) -> int:
    """Return how many windows an axis of so many pixels has; one that begins in the padding behind the last pixel is none."""
    reach = whole + 2 * padding - kernel
    count = (-(-reach // stride) if ceil_mode else reach // stride) + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= whole + padding else count


def _window_shares(sizes: tuple[int, int], kernel: int, stride: int, padding: int, *, count_padding: bool) -> Tensor:
    """Return each pixel's share in each window's mean, (h, H), along one axis of sizes (H, h)."""
    whole, pooled = sizes
    shares = torch.zeros(pooled, whole)
    for window in range(pooled):
        begin = window * stride - padding
        end = min(begin + kernel, whole + padding)  # a window may hang over the edge where sizes are rounded up
        inside = range(max(begin, 0), min(end, whole))
        shares[window, inside.start : inside.stop] = 1.0 / (end - begin if count_padding else len(inside))
    return shares


def _adaptive_shares(whole: int, pooled: int) -> Tensor:
    """Return each pixel's share in each window's mean, (h, H), where H pixels are shared out to h windows."""
    shares = torch.zeros(pooled, whole)
    for window in range(pooled):
        begin, end = window * whole // pooled, -(-(window + 1) * whole // pooled)
        shares[window, begin:end] = 1.0 / (end - begin)
    return shares


def _binary(shares: Tensor) -> Tensor:
    """Return 1 where a pixel belongs to a window."""
    return (shares > 0).to(shares.dtype)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    """Return one number for rows and one for columns."""
    return int(values[0]), int(values[-1])
