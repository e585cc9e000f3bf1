"""The five convolutional networks of unlike sizes that pFedES and FedGH are compared on (Yi et al., AAAI 2025, table of models)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from trainer.models.images import halve, image_shape, with_channels

SMALLEST_SIDE = 16
HIDDEN = 500
WIDTHS = ((32, 2000), (16, 2000), (32, 1000), (32, 800), (32, 500))  # channels of the second convolution, units after it


class FiveCNN(nn.Module):
    """Two convolutions of 5 x 5, each followed by pooling, and three layers.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        number: Which of the five, 1 to 5; 1 is the largest.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, number: int = 1) -> None:
        super().__init__()
        image = image_shape(sample_shape, SMALLEST_SIDE, f"cnn-{number}")
        channels, units = WIDTHS[number - 1]
        height, width = (((side - 4) // 2 - 4) // 2 for side in (image.height, image.width))
        self.first = nn.Conv2d(image.channels, 16, 5)
        self.second = nn.Conv2d(16, channels, 5)
        self.wide = nn.Linear(channels * height * width, units)
        self.hidden = nn.Linear(units, HIDDEN)
        self.head = nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, C) from normalised images (B, H, W) or (B, channels, H, W)."""
        x = halve(torch.relu(self.first(with_channels(x))))  # (B, 16, H // 2 - 2, W // 2 - 2)
        x = halve(torch.relu(self.second(x)))  # (B, channels, height, width)
        x = torch.relu(self.wide(x.flatten(1)))  # (B, units)
        x = torch.relu(self.hidden(x))  # (B, 500)
        outputs: Tensor = self.head(x)  # (B, C)
        return outputs


FIVE_CNNS = {f"cnn-{number}": partial(FiveCNN, number=number) for number in range(1, 6)}
