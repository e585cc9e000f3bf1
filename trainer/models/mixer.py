"""An MLP-Mixer with the parameter names of timm, so that its published weights fit (Tolstikhin et al., arXiv 2105.01601).

``mixer_b16_224`` has the sizes of the published network of that name.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from protocol.errors import InputError
from trainer.models.images import image_shape, with_channels
from trainer.models.vit import EPSILON, PatchEmbedding, Perceptron


class MlpMixer(nn.Module):
    """Patches through blocks that mix first over tokens and then over features; the head reads the mean token.

    Args:
        sample_shape: (H, W) or (channels, H, W), sides a multiple of ``patch``.
        classes: Units of the head.
        patch: Side of a patch.
        dimension: Features D of a token; even.
        depth: Blocks.
    """

    def __init__(self, sample_shape: Sequence[int], classes: int, patch: int = 4, dimension: int = 64, depth: int = 4) -> None:
        super().__init__()
        image = image_shape(sample_shape, patch, "mixer")
        if image.height % patch or image.width % patch:
            expected = f"sides a multiple of {patch}"
            raise InputError("patches do not tile the images", expected=expected, got=f"{image.height} x {image.width}")
        if dimension % 2:
            raise InputError("tokens are mixed by half as many units as features", expected="an even dimension", got=dimension)
        tokens = (image.height // patch) * (image.width // patch)
        self.stem = PatchEmbedding(image.channels, patch, dimension)
        self.blocks = nn.ModuleList(MixerBlock(tokens, dimension) for _ in range(depth))
        self.norm = nn.LayerNorm(dimension, eps=EPSILON)
        self.head = nn.Linear(dimension, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C) from normalised images (B, H, W) or (B, channels, H, W)."""
        tokens = self.stem(with_channels(x))  # (B, T, D)
        for block in self.blocks:
            tokens = block(tokens)  # (B, T, D)
        logits: Tensor = self.head(self.norm(tokens).mean(dim=1))  # (B, C)
        return logits


class MixerBlock(nn.Module):
    """Two perceptrons, each behind a norm and around a shortcut: one over the T tokens, one over the D features."""

    def __init__(self, tokens: int, dimension: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dimension, eps=EPSILON)
        self.mlp_tokens = Perceptron(tokens, dimension // 2)
        self.norm2 = nn.LayerNorm(dimension, eps=EPSILON)
        self.mlp_channels = Perceptron(dimension, 4 * dimension)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (B, T, D)."""
        tokens = tokens + self.mlp_tokens(self.norm1(tokens).transpose(1, 2)).transpose(1, 2)
        result: Tensor = tokens + self.mlp_channels(self.norm2(tokens))
        return result
