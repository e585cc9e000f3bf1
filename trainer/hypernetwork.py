"""Chunked hypernetwork: a small MLP that writes the weights of another network, one chunk after the other.

The target's weights are cut into equal chunks; each chunk has a learned embedding; the MLP maps (condition, chunk
embedding) to that chunk, and what a last chunk has too much is discarded (von Oswald et al., "Continual learning with
hypernetworks", ICLR 2020; HyperFedZero, Zhou et al., arXiv 2508.12673).

Initialisation: generated weights must have the variance that the target's layers need (Chang, Flokas and Lipson,
"Principled weight initialization for hypernetworks", ICLR 2020). The MLP's output has unit variance at the start, and
each chunk has a fixed scale: 1/sqrt(fan-in) for weights, a small constant for biases. Without the scale plain SGD
diverges. Tensors of one scale are cut together, so no chunk straddles two scales and the scale can multiply a few hidden
units instead of every weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.methods.checks import check_at_least

BIAS_SCALE = 0.05


@dataclass(frozen=True)
class HypernetworkSize:
    """Sizes of a chunked hypernetwork.

    Attributes:
        chunk_size: Weights that one pass writes. Where it is the fan-in of the first layer, as the default is for images of
            28 x 28, training is several times faster.
        chunk_embedding: Length of each chunk's embedding.
        hidden: Hidden units.
    """

    chunk_size: int = 784
    chunk_embedding: int = 8
    hidden: int = 24

    def __post_init__(self) -> None:
        """Refuse sizes that cannot work."""
        for name in ("chunk_size", "chunk_embedding", "hidden"):
            check_at_least(f"hypernetwork.{name}", getattr(self, name), 1)


class ChunkedHypernetwork(nn.Module):
    """Condition -> weights of a target network.

    Args:
        targets: Name and shape of each tensor to generate.
        condition: Length E of the condition; conditions lie on the simplex.
        size: Sizes of the network.
        scale: Factor on what is written at the start: 1 for whole weights, less for changes to others.
    """

    chunk_scale: Tensor

    def __init__(self, targets: Mapping[str, torch.Size], condition: int, size: HypernetworkSize, scale: float = 1.0) -> None:
        super().__init__()
        self.targets = dict(targets)
        self.groups = _group_by_scale(self.targets)
        self.group_chunks = [math.ceil(self._length(names) / size.chunk_size) for names in self.groups.values()]
        scales = torch.tensor(list(self.groups), dtype=torch.float64).repeat_interleave(torch.tensor(self.group_chunks))  # (K,)
        self.register_buffer("chunk_scale", scales.unsqueeze(1))  # (K, 1)
        self.chunk_embeddings = nn.Parameter(torch.randn(len(self.chunk_scale), size.chunk_embedding))  # (K, Z)
        self.from_condition = nn.Linear(condition, size.hidden)
        self.from_chunk = nn.Linear(size.chunk_embedding, size.hidden, bias=False)
        # Stored (H, chunk size), not as nn.Linear stores it: the gradient of that layout takes half the time.
        self.write = nn.Parameter(torch.empty(size.hidden, size.chunk_size))
        self.condition_scale = math.sqrt(condition)  # a uniform simplex point then has length 1
        self._initialise(size, scale)

    def _initialise(self, size: HypernetworkSize, scale: float) -> None:
        """Give hidden units and outputs unit variance for a uniform condition."""
        first = 1.0 / math.sqrt(1.0 + size.chunk_embedding)
        nn.init.normal_(self.from_condition.weight, std=first)
        nn.init.zeros_(self.from_condition.bias)
        nn.init.normal_(self.from_chunk.weight, std=first)
        nn.init.normal_(self.write, std=scale * math.sqrt(2.0 / size.hidden))  # half of the units pass the ReLU

    def forward(self, condition: Tensor) -> dict[str, Tensor]:
        """Return the named weights (M, *shape), in target order, for conditions (M, E)."""
        return self.write_weights(self.units(condition))

    def units(self, condition: Tensor) -> list[Tensor]:
        """Return the scaled hidden units of each group's chunks, (M, chunks of the group, H) each, for conditions (M, E)."""
        per_condition = self.from_condition(condition * self.condition_scale)  # (M, H)
        per_chunk = self.from_chunk(self.chunk_embeddings)  # (K, H)
        hidden = torch.relu(per_condition.unsqueeze(1) + per_chunk) * self.chunk_scale  # (M, K, H)
        return list(torch.split(hidden, self.group_chunks, dim=1))

    def write_weights(self, units: list[Tensor], without: str | None = None) -> dict[str, Tensor]:
        """Return the named weights (M, *shape), in target order, that hidden units write; ``without`` names one to leave out."""
        named: dict[str, Tensor] = {}
        # Written group by group: splitting what was written together would copy every weight's gradient once more.
        for names, own in zip(self.groups.values(), units, strict=True):
            if names != [without]:
                named |= self._take(names, (own @ self.write).flatten(1))
        return {name: named[name] for name in self.targets if name in named}

    def writes_rows(self, name: str) -> bool:
        """Tell whether each chunk of a tensor is one of its rows: then the tensor is a product of ``units`` and ``write``."""
        shape = self.targets.get(name, torch.Size())
        return len(shape) == 2 and shape[1] == self.write.shape[1] and [name] in self.groups.values()

    def apply_rows(self, name: str, units: list[Tensor], x: Tensor) -> Tensor:
        """Return x (B, C) times the transpose of a tensor (rows, C) that is written row by row, for one condition (M = 1).

        The tensor itself is never made: (x write^T) units^T costs a fraction of x (units write)^T, forward and backward.
        """
        own = units[list(self.groups.values()).index([name])]  # (1, rows, H)
        return (x @ self.write.T) @ own.squeeze(0).T  # (B, rows)

    def _take(self, names: list[str], flat: Tensor) -> dict[str, Tensor]:
        """Return the tensors (M, *shape) of one group from its chunks (M, P and surplus); the surplus is discarded."""
        lengths = [self.targets[name].numel() for name in names]
        surplus = flat.shape[1] - sum(lengths)
        sizes = [*lengths, surplus] if surplus else lengths
        pieces = torch.split(flat, sizes, dim=1) if len(sizes) > 1 else (flat,)  # even a split into one copies gradients
        return {name: piece.unflatten(1, tuple(self.targets[name])) for name, piece in zip(names, pieces, strict=False)}

    def _length(self, names: list[str]) -> int:
        """Return the number of weights in some tensors."""
        return sum(self.targets[name].numel() for name in names)


def _group_by_scale(targets: Mapping[str, torch.Size]) -> dict[float, list[str]]:
    """Return the tensors that share a scale, by that scale."""
    groups: dict[float, list[str]] = {}
    for name, shape in targets.items():
        scale = BIAS_SCALE if len(shape) < 2 else 1.0 / math.sqrt(shape[1:].numel())
        groups.setdefault(scale, []).append(name)
    return groups
