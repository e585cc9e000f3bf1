"""The gradient of ReLU as a product with 0 and 1: choosing element by element takes runtimes several times as long."""

from __future__ import annotations

from torch import Tensor


def threshold_backward(gradient: Tensor, samples: Tensor, threshold: float) -> Tensor:
    """Return the gradient where samples lie above the threshold, 0 elsewhere."""
    return gradient * (samples > threshold).to(gradient.dtype)
