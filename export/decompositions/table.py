"""Which operation is replaced by which function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from export.decompositions.activations import threshold_backward
from export.decompositions.convolution import convolution_backward
from export.decompositions.losses import nll_loss_backward, nll_loss_forward
from export.decompositions.max_pooling import max_pool2d_backward
from export.decompositions.pooling import adaptive_avg_pool2d, adaptive_avg_pool2d_backward, avg_pool2d, avg_pool2d_backward
from export.decompositions.slicing import repeat, select_backward, slice_backward
from export.decompositions.transposed_convolution import convolution

aten = torch.ops.aten

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.nll_loss_forward.default: nll_loss_forward,
    aten.nll_loss_backward.default: nll_loss_backward,
    aten.avg_pool2d.default: avg_pool2d,
    aten.avg_pool2d_backward.default: avg_pool2d_backward,
    aten._adaptive_avg_pool2d.default: adaptive_avg_pool2d,
    aten._adaptive_avg_pool2d_backward.default: adaptive_avg_pool2d_backward,
    aten.max_pool2d_with_indices_backward.default: max_pool2d_backward,
    aten.threshold_backward.default: threshold_backward,
    aten.slice_backward.default: slice_backward,
    aten.select_backward.default: select_backward,
    aten.repeat.default: repeat,
}
