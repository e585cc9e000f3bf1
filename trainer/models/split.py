"""A classifier cut in two: any model as a feature extractor with a common number of features, and a linear head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.models.registry import build_model


class SplitClassifier(nn.Module):
    """A model whose outputs are features, and a head that reads them.

    The model's own last layer is the projection to the common number of features, so any model that the registry knows can
    take part, and a user's own.

    Args:
        name: The model, as ``build_model`` takes it.
        sample_shape: Shape of one sample.
        classes: Classes C.
        features: Features D, the same for all devices of a fleet.
    """

    def __init__(self, name: str, sample_shape: Sequence[int], classes: int, features: int) -> None:
        super().__init__()
        self.extractor = build_model(name, sample_shape, features)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (B, D) and logits (B, C) from normalised samples (B, *shape)."""
        features = torch.relu(self.extractor(x))  # (B, D)
        return features, self.head(features)  # (B, D), (B, C)
