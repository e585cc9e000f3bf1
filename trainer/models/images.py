"""What the convolutional networks share: which images they take, and the pooling between their layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from protocol.errors import InputError


class ImageShape(NamedTuple):
    """Shape of one image."""

    channels: int
    height: int
    width: int


def image_shape(sample_shape: Sequence[int], smallest_side: int, model: str) -> ImageShape:
    """Return the shape of one sample as an image; a grey image without a channel axis has one channel.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        smallest_side: Fewest rows and columns that leave something after the last layer.
        model: Name of the model, for the message.

    Raises:
        InputError: The samples are no images, or too small.
    """
    if len(sample_shape) not in (2, 3):
        expected, hint = "(height, width) or (channels, height, width)", "an mlp takes any shape"
        raise InputError(f"{model} takes images", expected=expected, got=tuple(sample_shape), hint=hint)
    channels, height, width = (1, *sample_shape)[-3:]
    if min(height, width) < smallest_side:
        expected, hint = f"at least {smallest_side} x {smallest_side}", "channels come first: (channels, height, width)"
        raise InputError(f"images are too small for {model}", expected=expected, got=f"{height} x {width}", hint=hint)
    return ImageShape(channels, height, width)


def with_channels(x: Tensor) -> Tensor:
    """Return images (B, channels, H, W) from those or from grey images (B, H, W)."""
    return x if x.dim() == 4 else x.unsqueeze(1)  # (B, channels, H, W)


def halve(x: Tensor) -> Tensor:
    """Return the maxima (B, channels, H // 2, W // 2) of 2 x 2 fields; an odd last row or column is left out."""
    return F.max_pool2d(x, 2)  # (B, channels, H // 2, W // 2)
