"""Proxies: small networks that travel in the place of a device's own model (pFedES).

Two classifiers stand beside the model, one that changes images stands in front of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.models.images import halve, image_shape, with_channels

SMALLEST_SIDE = 16


class StridedProxy(nn.Module):
    """Two strided convolutions, pooling and two layers: 43,338 weights for grey 28 x 28 images and 10 classes.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        channels: Channels of the two convolutions.
        embedding: Units of the layer before the last.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, channels: Sequence[int] = (16, 32), embedding: int = 128) -> None:
        super().__init__()
        image = image_shape(sample_shape, SMALLEST_SIDE, "proxy-strided")
        first, second = channels
        height, width = (-(-side // 4) // 2 for side in (image.height, image.width))
        self.first = nn.Conv2d(image.channels, first, 5, stride=2, padding=2)
        self.second = nn.Conv2d(first, second, 3, stride=2, padding=1)
        self.embed = nn.Linear(second * height * width, embedding)
        self.head = nn.Linear(embedding, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C) from normalised images (B, H, W) or (B, channels, H, W)."""
        x = torch.relu(self.first(with_channels(x)))  # (B, first, H / 2, W / 2)
        x = halve(torch.relu(self.second(x)))  # (B, second, H / 8, W / 8)
        x = torch.relu(self.embed(x.flatten(1)))  # (B, embedding)
        logits: Tensor = self.head(x)  # (B, C)
        return logits


class PooledProxy(nn.Module):
    """Two convolutions of 3 x 3, the mean of each channel and two layers: 28,426 weights for grey images and 10 classes.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        channels: Channels of the two convolutions.
        embedding: Units of the layer before the last.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, channels: Sequence[int] = (32, 64), embedding: int = 128) -> None:
        super().__init__()
        image = image_shape(sample_shape, SMALLEST_SIDE, "proxy-pooled")
        first, second = channels
        self.first = nn.Conv2d(image.channels, first, 3, padding=1)
        self.second = nn.Conv2d(first, second, 3, padding=1)
        self.embed = nn.Linear(second, embedding)
        self.head = nn.Linear(embedding, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C) from normalised images (B, H, W) or (B, channels, H, W)."""
        x = halve(torch.relu(self.first(with_channels(x))))  # (B, first, H // 2, W // 2)
        x = torch.relu(self.second(x)).mean(dim=(2, 3))  # (B, second)
        x = torch.relu(self.embed(x))  # (B, embedding)
        logits: Tensor = self.head(x)  # (B, C)
        return logits


class ShapePreservingProxy(nn.Module):
    """A change of the samples that leaves their shape: two convolutions for images, 443 weights for RGB, two layers for vectors.

    Args:
        sample_shape: (H, W), (channels, H, W), or (D,).
        hidden: Channels of the convolution between, or units of the layer between.
    """

    def __init__(self, sample_shape: Sequence[int], hidden: int = 8) -> None:
        super().__init__()
        self.has_channels = len(sample_shape) == 3
        self.is_image = len(sample_shape) in (2, 3)
        if self.is_image:
            channels = image_shape(sample_shape, 1, "the proxy").channels
            self.first: nn.Module = nn.Conv2d(channels, hidden, 3, padding=1)
            self.second: nn.Module = nn.Conv2d(hidden, channels, 3, padding=1)
        else:
            size = math.prod(sample_shape)
            self.first, self.second = nn.Linear(size, hidden), nn.Linear(hidden, size)

    def forward(self, x: Tensor) -> Tensor:
        """Return changed samples (B, *shape), none below 0, from normalised ones (B, *shape)."""
        inputs = with_channels(x) if self.is_image else x.flatten(1)  # (B, channels, H, W) or (B, D)
        changed = torch.relu(self.second(torch.relu(self.first(inputs))))  # the same
        return changed.reshape(x.shape)  # (B, *shape)
