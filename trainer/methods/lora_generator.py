"""The generator of HyperLoRA: a device's distribution signature -> its low-rank factors and head.

    theta(s, l) = base_l + sum_j c_j(s, e_l) basis_lj,    c = MLP(s, e_l),    e_l a learned embedding of layer l

A base that all devices share plus a mixture of learned bases: few numbers per layer depend on the signature, so a handful
of devices is enough to train it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.methods.checks import check_at_least, check_positive


@dataclass(frozen=True)
class GeneratorSize:
    """Sizes of the generator.

    Attributes:
        bases: Learned bases of each layer.
        hidden: Units of both hidden layers.
        layer_embedding: Length of a layer's embedding.
        basis_scale: Standard deviation of the bases at the start: small, so that training begins like FedIT.
    """

    bases: int = 16
    hidden: int = 64
    layer_embedding: int = 16
    basis_scale: float = 0.02

    def __post_init__(self) -> None:
        """Refuse sizes that cannot work."""
        for name in ("bases", "hidden", "layer_embedding"):
            check_at_least(f"generator.{name}", getattr(self, name), 1)
        check_positive("generator.basis_scale", self.basis_scale)


class LoraGenerator(nn.Module):
    """Signatures -> named tensors.

    Args:
        layers: For each layer, its freshly drawn tensors by name: the base at the start.
        signature: Length S of a signature.
        size: Sizes of the network.
    """

    def __init__(self, layers: Sequence[Mapping[str, Tensor]], signature: int, size: GeneratorSize) -> None:
        super().__init__()
        self.shapes = [{name: tensor.shape for name, tensor in layer.items()} for layer in layers]
        flat = [torch.cat([tensor.flatten() for tensor in layer.values()]) for layer in layers]
        self.bases = nn.ParameterList(flat)
        self.mixed = nn.ParameterList(size.basis_scale * torch.randn(size.bases, len(each)) for each in flat)  # (J, P) each
        self.embeddings = nn.Parameter(torch.randn(len(layers), size.layer_embedding))  # (L, Z)
        self.coefficients = nn.Sequential(
            nn.Linear(signature + size.layer_embedding, size.hidden),
            nn.GELU(),
            nn.Linear(size.hidden, size.hidden),
            nn.GELU(),
            nn.Linear(size.hidden, size.bases),
        )

    def forward(self, signatures: Tensor) -> dict[str, Tensor]:
        """Return named tensors (M, *shape) for signatures (M, S)."""
        named: dict[str, Tensor] = {}
        for place, shapes in enumerate(self.shapes):
            embedding = self.embeddings[place].expand(signatures.shape[0], -1)  # (M, Z)
            mixture = self.coefficients(torch.cat([signatures, embedding], dim=1))  # (M, J)
            flat = self.bases[place] + mixture @ self.mixed[place]  # (M, P)
            pieces = flat.split([shape.numel() for shape in shapes.values()], dim=1)
            named |= {name: piece.unflatten(1, tuple(shape)) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
        return named
