"""The small convolutional network that federated benchmarks train on CIFAR-10 (Granqvist et al., "pfl-research", 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.models.dropout import DropoutInput, drop
from trainer.models.images import halve, image_shape, with_channels

SMALLEST_SIDE = 6


class BenchmarkCNN(nn.Module):
    """Two convolutions of 3 x 3, pooling, two layers: 1,626,442 weights for 3 x 32 x 32 images and 10 classes.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        hidden: Units of the layer before the last.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, hidden: int = 128) -> None:
        super().__init__()
        image = image_shape(sample_shape, SMALLEST_SIDE, "cnn")
        pooled = (64, (image.height - 4) // 2, (image.width - 4) // 2)
        self.after_pooling = DropoutInput("dropout_after_pooling", pooled, 0.75)
        self.after_hidden = DropoutInput("dropout_after_hidden", (hidden,), 0.5)
        self.first = nn.Conv2d(image.channels, 32, 3)
        self.second = nn.Conv2d(32, 64, 3)
        self.hidden = nn.Linear(pooled[0] * pooled[1] * pooled[2], hidden)
        self.head = nn.Linear(hidden, classes)

    def dropout_inputs(self) -> tuple[DropoutInput, ...]:
        """Return the random bytes that ``forward`` takes as ``masks``."""
        return (self.after_pooling, self.after_hidden)

    def forward(self, x: Tensor, masks: dict[str, Tensor] | None = None) -> Tensor:
        """Return logits (B, C) from normalised images (B, H, W) or (B, channels, H, W).

        Args:
            x: Normalised images.
            masks: Random bytes of ``dropout_inputs`` by name, (B, *shape) uint8; None in evaluation.
        """
        x = torch.relu(self.first(with_channels(x)))  # (B, 32, H - 2, W - 2)
        x = halve(torch.relu(self.second(x)))  # (B, 64, H // 2 - 2, W // 2 - 2)
        x = drop(x, masks, self.after_pooling).flatten(1)  # (B, features)
        x = drop(torch.relu(self.hidden(x)), masks, self.after_hidden)  # (B, hidden)
        logits: Tensor = self.head(x)  # (B, C)
        return logits
