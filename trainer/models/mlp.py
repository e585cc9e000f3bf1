"""A multilayer perceptron on flattened samples, and the normalisation in front of every model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn


class Normalise(nn.Module):
    """Map raw values to 0..1, so that a device feeds what its sensor gives.

    Args:
        minimum: Smallest raw value.
        maximum: Largest raw value.
    """

    scale: Tensor

    def __init__(self, minimum: float, maximum: float) -> None:
        super().__init__()
        self.minimum = float(minimum)
        self.register_buffer("scale", torch.tensor(1.0 / (maximum - minimum), dtype=torch.float64))

    def forward(self, samples: Tensor) -> Tensor:
        """Return (B, *shape) floating from raw samples (B, *shape) of any dtype."""
        x = samples.to(self.scale.dtype)  # (B, *shape)
        return (x - self.minimum if self.minimum else x) * self.scale  # (B, *shape)


FIRST_WEIGHT = "layers.0.weight"


class MLP(nn.Module):
    """Fully connected layers with ReLU between them.

    Args:
        sample_shape: Shape of one sample; it is flattened.
        hidden: Units of each hidden layer.
        outputs: Units of the last layer.
    """

    def __init__(self, sample_shape: Sequence[int], hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        sizes = [math.prod(sample_shape), *hidden, outputs]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))

    def forward(self, x: Tensor, product: Tensor | None = None) -> Tensor:
        """Return logits (B, C) from normalised samples (B, *shape).

        Args:
            x: Normalised samples.
            product: The samples times the first layer's weight, (B, units of that layer), if it was computed elsewhere.
        """
        first = cast("nn.Linear", self.layers[0])
        x = first(x.flatten(1)) if product is None else product + first.bias  # (B, units)
        for layer in self.layers[1:]:
            x = layer(torch.relu(x))  # (B, units)
        return x  # (B, C)
