"""Low-rank adaptation: layers whose frozen weight is added to by the product of two thin factors (Hu et al., arXiv 2106.09685).

A layer computes x W^T + b + scale * (x A^T) B^T with A (R, I), B (O, R) and scale = alpha / R. B begins at zero, so a fresh
adapter changes nothing. Base weights keep their names, so a checkpoint of the plain model fits the adapted one.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protocol.errors import InputError
from trainer.methods.base import State

FACTOR_A, FACTOR_B = "lora_A", "lora_B"


@dataclass(frozen=True)
class LoraPattern:
    """Which layers are adapted, and how.

    Attributes:
        layers: Regular expression that a linear layer's whole name must match.
        rank: Rank R of the factors.
        alpha: Numerator of the scale alpha / R.
    """

    layers: str
    rank: int = 8
    alpha: float = 8.0

    def __post_init__(self) -> None:
        """Refuse ranks that cannot be, and what is no regular expression."""
        if self.rank != int(self.rank) or self.rank < 1 or not 0 < self.alpha < math.inf:
            raise InputError("a LoRA pattern is wrong", expected="a whole rank from 1, alpha above 0", got=f"{self.rank}, {self.alpha}")
        try:
            re.compile(self.layers)
        except re.error as error:
            raise InputError("a LoRA pattern is no regular expression", got=f"{self.layers!r}: {error}") from error


class LoraLinear(nn.Linear):
    """A linear layer with a low-rank addition.

    Args:
        layer: The layer to adapt; its weights are shared.
        rank: Rank R.
        alpha: Numerator of the scale.
    """

    def __init__(self, layer: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.scale = alpha / rank
        self.lora_A = nn.Parameter(layer.weight.new_empty(rank, layer.in_features))
        self.lora_B = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, samples: Tensor) -> Tensor:
        """Return (B, *, O) from (B, *, I)."""
        low = samples @ self.lora_A.transpose(0, 1)  # (B, *, R)
        # Subtracted, not added: ONNX Runtime 1.19 fuses a product and a sum into Gemm, which refuses factors of rank 0 there.
        return super().forward(samples) - low @ (-self.scale * self.lora_B.transpose(0, 1))


def with_lora(module: nn.Module, patterns: Sequence[LoraPattern], seed: int) -> nn.Module:
    """Return a copy of a module in which every matching linear layer is adapted by the first pattern that matches.

    Args:
        module: Any module; it stays as it is.
        patterns: Which layers, with rank and alpha.
        seed: Seed of the factors A.

    Raises:
        InputError: A pattern matches no linear layer.
    """
    adapted = copy.deepcopy(module)
    unused = list(patterns)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, layer in [each for each in adapted.named_modules() if isinstance(each[1], nn.Linear)]:
            pattern = next((each for each in patterns if re.fullmatch(each.layers, name)), None)
            if pattern is None:
                continue
            unused = [each for each in unused if each is not pattern]
            parent, _, own = name.rpartition(".")
            setattr(adapted.get_submodule(parent), own, LoraLinear(layer, pattern.rank, pattern.alpha))
    if unused:
        known = ", ".join(name for name, layer in module.named_modules() if isinstance(layer, nn.Linear))
        raise InputError("a LoRA pattern matches no linear layer", expected=f"one of {known}"[:300], got=unused[0].layers)
    return adapted


def factors_of(module: nn.Module) -> State:
    """Return the factors of an adapted module by name, detached."""
    return {name: each.detach() for name, each in module.named_parameters() if name.endswith((FACTOR_A, FACTOR_B))}


def merged(module: nn.Module) -> State:
    """Return the weights of the plain model that computes what the adapted one computes: W + scale * B A."""
    weights = {name: each.detach() for name, each in module.named_parameters() if not name.endswith((FACTOR_A, FACTOR_B))}
    for name, layer in module.named_modules():
        if isinstance(layer, LoraLinear):
            key = f"{name}.weight" if name else "weight"
            weights[key] = weights[key] + layer.scale * (layer.lora_B @ layer.lora_A).detach()
    return weights
