"""Chunked hypernetwork: a small MLP that writes the weights of another network, one chunk after the other.

The flat weight vector of the target is cut into equal chunks; each chunk has a learned embedding; the MLP maps
(condition, chunk embedding) to that chunk, and what the last chunk has too much is discarded (von Oswald et al.,
"Continual learning with hypernetworks", ICLR 2020; HyperFedZero, Zhou et al., arXiv 2508.12673).

Initialisation: generated weights must have the variance that the target's layers need, whatever the chunk cuts
through (Chang, Flokas and Lipson, "Principled weight initialization for hypernetworks", ICLR 2020). Here the last
layer has unit variance at the start and a fixed scale per entry does the rest: 1/sqrt(fan-in) for weights, a small
constant for biases. Without the scale plain SGD diverges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

BIAS_SCALE = 0.05


@dataclass(frozen=True)
class HypernetworkSize:
    """Sizes of a chunked hypernetwork.

    Attributes:
        chunk_size: Weights that one pass writes.
        chunk_embedding: Length of each chunk's embedding.
        hidden: Hidden units.
    """

    chunk_size: int = 1024
    chunk_embedding: int = 8
    hidden: int = 24


class ChunkedHypernetwork(nn.Module):
    """Condition -> weights of a target network.

    Args:
        targets: Name and shape of each tensor to generate, in the order of the flat vector.
        condition: Length E of the condition; conditions lie on the simplex.
        size: Sizes of the network.
    """

    entry_scale: Tensor

    def __init__(self, targets: Mapping[str, torch.Size], condition: int, size: HypernetworkSize) -> None:
        super().__init__()
        self.targets = dict(targets)
        self.length = sum(shape.numel() for shape in self.targets.values())
        chunks = math.ceil(self.length / size.chunk_size)
        self.chunk_embeddings = nn.Parameter(torch.randn(chunks, size.chunk_embedding))  # (K, Z)
        self.from_condition = nn.Linear(condition, size.hidden)
        self.from_chunk = nn.Linear(size.chunk_embedding, size.hidden, bias=False)
        self.write = nn.Linear(size.hidden, size.chunk_size)
        self.condition_scale = math.sqrt(condition)  # a uniform simplex point then has length 1
        self.register_buffer("entry_scale", torch.cat([_entry_scale(shape) for shape in self.targets.values()]))  # (P,)
        self._initialise(size)

    def _initialise(self, size: HypernetworkSize) -> None:
        """Give hidden units and outputs unit variance for a uniform condition."""
        first = 1.0 / math.sqrt(1.0 + size.chunk_embedding)
        nn.init.normal_(self.from_condition.weight, std=first)
        nn.init.zeros_(self.from_condition.bias)
        nn.init.normal_(self.from_chunk.weight, std=first)
        nn.init.normal_(self.write.weight, std=math.sqrt(2.0 / size.hidden))  # half of the units pass the ReLU
        nn.init.zeros_(self.write.bias)

    def forward(self, condition: Tensor) -> Tensor:
        """Return flat weights (M, P) from conditions (M, E)."""
        per_condition = self.from_condition(condition * self.condition_scale)  # (M, H)
        per_chunk = self.from_chunk(self.chunk_embeddings)  # (K, H)
        hidden = torch.relu(per_condition.unsqueeze(1) + per_chunk)  # (M, K, H)
        flat = self.write(hidden).flatten(1)[:, : self.length]  # (M, P) the surplus of the last chunk is cut off
        weights: Tensor = flat * self.entry_scale  # (M, P)
        return weights

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the named tensors (M, *shape) that a flat vector (M, P) holds."""
        pieces = torch.split(flat, [shape.numel() for shape in self.targets.values()], dim=1)
        named = zip(self.targets.items(), pieces, strict=True)
        return {name: piece.unflatten(1, tuple(shape)) for (name, shape), piece in named}  # (M, *shape)


def _entry_scale(shape: torch.Size) -> Tensor:
    """Return the fixed scale of each entry of one tensor, (numel,) float64: rounded only once, to the network's dtype."""
    scale = BIAS_SCALE if len(shape) < 2 else 1.0 / math.sqrt(shape[1:].numel())
    return torch.full((shape.numel(),), scale, dtype=torch.float64)
