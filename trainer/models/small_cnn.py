"""Two small convolutional networks for fleets of unlike devices: a plain one, and one with residual blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.models.images import halve, image_shape, with_channels

SMALLEST_SIDE = 16
GROUPS = 8


class SmallCNN(nn.Module):
    """Two convolutions of 5 x 5, each followed by pooling, and one layer: 19,872 weights for grey 28 x 28 images and 64 outputs.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        channels: Channels of the two convolutions.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, channels: Sequence[int] = (8, 16)) -> None:
        super().__init__()
        image = image_shape(sample_shape, SMALLEST_SIDE, "small-cnn")
        first, second = channels
        height, width = (((side - 4) // 2 - 4) // 2 for side in (image.height, image.width))
        self.first = nn.Conv2d(image.channels, first, 5)
        self.second = nn.Conv2d(first, second, 5)
        self.head = nn.Linear(second * height * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, C) from normalised images (B, H, W) or (B, channels, H, W)."""
        x = halve(torch.relu(self.first(with_channels(x))))  # (B, first, H // 2 - 2, W // 2 - 2)
        x = halve(torch.relu(self.second(x)))  # (B, second, height, width)
        outputs: Tensor = self.head(x.flatten(1))  # (B, C)
        return outputs


class ResidualCNN(nn.Module):
    """Two residual blocks with group normalisation, each at half the sides of what was before, and the mean of each channel.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        width: Channels of the first block, a multiple of 8; the second has twice as many.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, width: int = 16) -> None:
        super().__init__()
        image = image_shape(sample_shape, SMALLEST_SIDE, "residual-cnn")
        self.stem = nn.Sequential(nn.Conv2d(image.channels, width, 3, stride=2, padding=1), nn.GroupNorm(GROUPS, width))
        self.first = _Residual(width)
        self.narrow = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.GroupNorm(GROUPS, 2 * width))
        self.second = _Residual(2 * width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, C) from normalised images (B, H, W) or (B, channels, H, W)."""
        x = self.first(torch.relu(self.stem(with_channels(x))))  # (B, width, H / 2, W / 2)
        x = self.second(torch.relu(self.narrow(x)))  # (B, 2 * width, H / 4, W / 4)
        outputs: Tensor = self.head(x.mean(dim=(2, 3)))  # (B, C)
        return outputs


class _Residual(nn.Module):
    """Two convolutions of 3 x 3 beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(GROUPS, channels))
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(GROUPS, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, channels, H, W) from the same."""
        return torch.relu(x + self.second(torch.relu(self.first(x))))  # (B, channels, H, W)
