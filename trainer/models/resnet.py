"""Residual networks of depth 6n + 2 for small images (He et al., "Deep residual learning", 2016), with group normalisation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from protocol.errors import InputError
from trainer.models.images import image_shape, with_channels

SMALLEST_SIDE = 4


class ResNet(nn.Module):
    """Three stages of n blocks; each next stage halves the sides and doubles the channels.

    The normalisation is Wu and He's over groups of channels within one sample, so a batch's composition does not matter.

    Args:
        sample_shape: (H, W) or (channels, H, W).
        classes: Units of the last layer.
        depth: Layers with weights, 6n + 2 of them.
        width: Channels of the first stage.
        normalisation: ``group``, or ``layer`` for one group of all channels.
        groups: Groups of channels for ``group``.
    """

    def __init__(
        self,
        sample_shape: Sequence[int],
        classes: int,
        depth: int = 20,
        width: int = 16,
        *,
        normalisation: str = "group",
        groups: int = 8,
    ) -> None:
        super().__init__()
        image = image_shape(sample_shape, SMALLEST_SIDE, f"resnet{depth}")
        groups = _groups(normalisation, groups, width)
        blocks = _blocks_of_a_stage(depth)
        self.stem = nn.Conv2d(image.channels, width, 3, padding=1, bias=False)
        self.normalise = nn.GroupNorm(groups, width)
        stages = [_Block(width << max(stage - (block == 0), 0), width << stage, groups) for stage in range(3) for block in range(blocks)]
        self.blocks = nn.ModuleList(stages)
        self.head = nn.Linear(width << 2, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C) from normalised images (B, H, W) or (B, channels, H, W)."""
        x = torch.relu(self.normalise(self.stem(with_channels(x))))  # (B, width, H, W)
        for block in self.blocks:
            x = block(x)  # (B, channels, height, width)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))  # (B, C)
        return logits


class _Block(nn.Module):
    """Two convolutions of 3 x 3 beside a shortcut without weights; more channels out than in halve the sides."""

    def __init__(self, before: int, after: int, groups: int) -> None:
        super().__init__()
        self.more_channels = after - before
        self.first = nn.Conv2d(before, after, 3, stride=2 if self.more_channels else 1, padding=1, bias=False)
        self.normalise_first = nn.GroupNorm(groups, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.normalise_second = nn.GroupNorm(groups, after)

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, after, H', W') from (B, before, H, W)."""
        inner = torch.relu(self.normalise_first(self.first(x)))  # (B, after, H', W')
        inner = self.normalise_second(self.second(inner))  # (B, after, H', W')
        return torch.relu(inner + self._shortcut(x))  # (B, after, H', W')

    def _shortcut(self, x: Tensor) -> Tensor:
        """Return the input, every second pixel of it and channels of zeros added where the block changes the shape."""
        if not self.more_channels:
            return x  # (B, after, H, W)
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more_channels))  # (B, after, H', W')


def _groups(normalisation: str, groups: int, width: int) -> int:
    """Return the number of groups of channels, or refuse."""
    if normalisation == "batch":
        raise InputError(
            "batch normalisation cannot be federated here",
            expected="group or layer normalisation",
            got="batch",
            hint="its running statistics are no weights: a local step, a pure function of its weights, cannot keep them, "
            "and their average over devices with different data describes none of them",
        )
    if normalisation not in ("group", "layer"):
        raise InputError("normalisation is unknown", expected="group or layer", got=normalisation)
    if normalisation == "layer":
        return 1
    if width % groups:
        raise InputError("channels cannot be cut into groups", expected=f"a width that {groups} groups divide", got=width)
    return groups


def _blocks_of_a_stage(depth: int) -> int:
    """Return n of a depth 6n + 2, or refuse."""
    if depth < 8 or depth % 6 != 2:
        raise InputError("no residual network has this depth", expected="6n + 2: 8, 14, 20, 32, 44, 56, 110", got=depth)
    return depth // 6
