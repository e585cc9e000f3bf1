"""The CIFAR network of Zenke et al., "Continual learning through synaptic intelligence", 2017."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.models.dropout import DropoutInput, drop
from trainer.models.images import halve, image_shape, with_channels

SMALLEST_SIDE = 10


class ZenkeNet(nn.Module):
    """Four convolutions of 3 x 3 in two blocks, two layers: 1,250,858 weights for 3 x 32 x 32 images and 10 classes.

    In each block the first convolution pads and the second does not; a pooling ends the block.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        hidden: Units of the layer before the last.
        dropout: Whether training drops activations as in the paper: a quarter after each block, half before the head.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, hidden: int = 512, *, dropout: bool = False) -> None:
        super().__init__()
        image = image_shape(sample_shape, SMALLEST_SIDE, "zenkenet")
        once = (32, (image.height - 2) // 2, (image.width - 2) // 2)
        twice = (64, (once[1] - 2) // 2, (once[2] - 2) // 2)
        shapes_and_shares = ((once, 0.75), (twice, 0.75), ((hidden,), 0.5))
        self.dropped = tuple(DropoutInput(f"dropout_{place}", shape, keep) for place, (shape, keep) in enumerate(shapes_and_shares))
        self.dropout = dropout
        self.first = nn.Conv2d(image.channels, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 32, 3)
        self.third = nn.Conv2d(32, 64, 3, padding=1)
        self.fourth = nn.Conv2d(64, 64, 3)
        self.hidden = nn.Linear(twice[0] * twice[1] * twice[2], hidden)
        self.head = nn.Linear(hidden, classes)

    def dropout_inputs(self) -> tuple[DropoutInput, ...]:
        """Return the random bytes that ``forward`` takes as ``masks``; none unless the network was made with dropout."""
        return self.dropped if self.dropout else ()

    def forward(self, x: Tensor, masks: dict[str, Tensor] | None = None) -> Tensor:
        """Return logits (B, C) from normalised images (B, H, W) or (B, channels, H, W).

        Args:
            x: Normalised images.
            masks: Random bytes of ``dropout_inputs`` by name, (B, *shape) uint8; None in evaluation.
        """
        drawn = masks if self.dropout else None
        x = torch.relu(self.first(with_channels(x)))  # (B, 32, H, W)
        x = halve(torch.relu(self.second(x)))  # (B, 32, H // 2 - 1, W // 2 - 1)
        x = torch.relu(self.third(drop(x, drawn, self.dropped[0])))  # (B, 64, H // 2 - 1, W // 2 - 1)
        x = halve(torch.relu(self.fourth(x)))  # (B, 64, height, width)
        x = torch.relu(self.hidden(drop(x, drawn, self.dropped[1]).flatten(1)))  # (B, hidden)
        logits: Tensor = self.head(drop(x, drawn, self.dropped[2]))  # (B, C)
        return logits
