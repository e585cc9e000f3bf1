"""The hypernetwork of pFedHN: a device's embedding -> the weights of its classifier.

Shamsian et al., "Personalized federated learning using hypernetworks", ICML 2021, section 3: fully connected layers, then
one linear output for each tensor of the classifier.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class EmbeddingHypernetwork(nn.Module):
    """Embedding -> named weights. The outputs' biases begin as a freshly drawn classifier, so that classifiers begin as one.

    Args:
        targets: The classifier's freshly drawn tensors by name.
        embedding: Length E of an embedding.
        hidden: Units H of each layer.
        layers: Hidden layers after the first.
    """

    def __init__(self, targets: Mapping[str, Tensor], embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.shapes = {name: tensor.shape for name, tensor in targets.items()}
        more = [module for _ in range(layers) for module in (nn.ReLU(), nn.Linear(hidden, hidden))]
        self.body = nn.Sequential(nn.Linear(embedding, hidden), *more)
        self.outputs = nn.ModuleList(_output(hidden, tensor) for tensor in targets.values())

    def forward(self, embeddings: Tensor) -> dict[str, Tensor]:
        """Return weights (M, *shape) by name for embeddings (M, E)."""
        hidden = self.body(embeddings)  # (M, H)
        pairs = zip(self.shapes.items(), self.outputs, strict=True)
        return {name: output(hidden).unflatten(1, tuple(shape) or (1,)) for (name, shape), output in pairs}


def _output(hidden: int, target: Tensor) -> nn.Linear:
    """Return the layer that writes one tensor."""
    output = nn.Linear(hidden, target.numel())
    with torch.no_grad():
        output.bias.copy_(target.flatten())
    return output
