"""A vision transformer with the parameter names of timm, so that its published weights fit (Dosovitskiy et al., arXiv 2010.11929).

``vit_base_patch16_224`` has the sizes of the published network of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from protocol.errors import InputError
from trainer.models.images import ImageShape, image_shape, with_channels

EPSILON = 1e-6  # of the layer norms, as in the published weights


class VisionTransformer(nn.Module):
    """A class token and patches through pre-norm blocks; the head reads the class token, or the mean of the patches without one.

    Args:
        sample_shape: (H, W) or (channels, H, W), sides a multiple of ``patch``.
        classes: Units of the head.
        patch: Side of a patch.
        dimension: Features D of a token.
        depth: Blocks.
        heads: Attention heads; they share out D.
        mlp_ratio: Hidden units of a block's perceptron, in units of D.
        pool: ``token``: there is a class token, which the head reads; ``mean``: there is none.
    """

    def __init__(  # noqa: PLR0913  # sizes go by these names in configuration files
        self,
        sample_shape: Sequence[int],
        classes: int,
        *,
        patch: int = 4,
        dimension: int = 64,
        depth: int = 4,
        heads: int = 4,
        mlp_ratio: int = 4,
        pool: Literal["token", "mean"] = "token",
    ) -> None:
        super().__init__()
        image = image_shape(sample_shape, patch, "vit")
        _check_sizes(image, patch, dimension, heads)
        tokens = (image.height // patch) * (image.width // patch) + (pool == "token")
        self.patch_embed = PatchEmbedding(image.channels, patch, dimension)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dimension)) if pool == "token" else None
        self.pos_embed = nn.Parameter(torch.randn(1, tokens, dimension) * 0.02)
        self.blocks = nn.ModuleList(Block(dimension, heads, mlp_ratio) for _ in range(depth))
        self.norm = nn.LayerNorm(dimension, eps=EPSILON)
        self.head = nn.Linear(dimension, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C) from normalised images (B, H, W) or (B, channels, H, W)."""
        tokens = self.patch_embed(with_channels(x))  # (B, patches, D)
        if self.cls_token is not None:
            tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)  # (B, T, D)
        tokens = tokens + self.pos_embed  # (B, T, D)
        for block in self.blocks:
            tokens = block(tokens)  # (B, T, D)
        tokens = self.norm(tokens)  # (B, T, D)
        logits: Tensor = self.head(tokens.mean(dim=1) if self.cls_token is None else tokens[:, 0])  # (B, C)
        return logits


class PatchEmbedding(nn.Module):
    """Patches as tokens."""

    def __init__(self, channels: int, patch: int, dimension: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dimension, patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens (B, patches, D) of images (B, channels, H, W)."""
        tokens: Tensor = self.proj(images).flatten(2).transpose(1, 2)
        return tokens


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and around a shortcut."""

    def __init__(self, dimension: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dimension, eps=EPSILON)
        self.attn = Attention(dimension, heads)
        self.norm2 = nn.LayerNorm(dimension, eps=EPSILON)
        self.mlp = Perceptron(dimension, mlp_ratio * dimension)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (B, T, D)."""
        tokens = tokens + self.attn(self.norm1(tokens))
        result: Tensor = tokens + self.mlp(self.norm2(tokens))
        return result


class Attention(nn.Module):
    """Self-attention, written out: the fused operator has no gradient that batches over clients or exports."""

    def __init__(self, dimension: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dimension, 3 * dimension)
        self.proj = nn.Linear(dimension, dimension)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens (B, T, D)."""
        batch, length, dimension = tokens.shape
        width = dimension // self.heads
        query, key, value = self.qkv(tokens).reshape(batch, length, 3, self.heads, width).permute(2, 0, 3, 1, 4)  # each (B, H, T, W)
        scores = (query * width**-0.5) @ key.transpose(-2, -1)  # (B, H, T, T)
        mixed = torch.softmax(scores, dim=-1) @ value  # (B, H, T, W)
        result: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, dimension))  # (B, T, D)
        return result


class Perceptron(nn.Module):
    """Two layers with GELU between them, on the last axis.

    Args:
        features: Size of the last axis, before and after.
        hidden: Units between.
    """

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, hidden)
        self.fc2 = nn.Linear(hidden, features)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens in the shape in which they came."""
        result: Tensor = self.fc2(nn.functional.gelu(self.fc1(tokens)))
        return result


def _check_sizes(image: ImageShape, patch: int, dimension: int, heads: int) -> None:
    """Refuse images that patches do not tile, and heads that do not share out the features."""
    if image.height % patch or image.width % patch:
        raise InputError("patches do not tile the images", expected=f"sides a multiple of {patch}", got=f"{image.height} x {image.width}")
    if dimension % heads:
        raise InputError("heads do not share out the features of vit", expected=f"a multiple of {heads}", got=dimension)
