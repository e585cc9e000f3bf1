"""LeNet in two sizes: two convolutions of 5 x 5, each followed by pooling, and two layers on top (LeCun et al., 1998)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.models.images import halve, image_shape, with_channels

SMALLEST_SIDE = 16


class LeNet(nn.Module):
    """The LeNet of Caffe's examples: 431,080 weights for grey 28 x 28 images and 10 classes.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        channels: Channels of the two convolutions.
        hidden: Units of the layer before the last.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, channels: Sequence[int] = (20, 50), hidden: int = 500) -> None:
        super().__init__()
        image = image_shape(sample_shape, SMALLEST_SIDE, "lenet")
        first, second = channels
        height, width = _rest(image.height), _rest(image.width)
        self.first = nn.Conv2d(image.channels, first, 5)
        self.second = nn.Conv2d(first, second, 5)
        self.hidden = nn.Linear(second * height * width, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C) from normalised images (B, H, W) or (B, channels, H, W)."""
        x = with_channels(x)  # (B, channels, H, W)
        x = torch.relu(halve(self.first(x)))  # (B, first, H // 2 - 2, W // 2 - 2)
        x = torch.relu(halve(self.second(x)))  # (B, second, height, width)
        x = torch.relu(self.hidden(x.flatten(1)))  # (B, hidden)
        logits: Tensor = self.head(x)  # (B, C)
        return logits


class SmallLeNet(LeNet):
    """LeNet-S: 21,840 weights for grey 28 x 28 images and 10 classes.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        channels: Channels of the two convolutions.
        hidden: Units of the layer before the last.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, channels: Sequence[int] = (10, 20), hidden: int = 50) -> None:
        super().__init__(sample_shape, classes, channels, hidden)


def _rest(side: int) -> int:
    """Return what two convolutions of 5 and two poolings leave of a side."""
    return ((side - 4) // 2 - 4) // 2
