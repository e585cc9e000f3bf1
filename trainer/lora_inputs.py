"""An adapted model whose factors are arguments, so that one graph serves the base model and every rank.

Without factors a graph takes empty ones, A (0, I) and B (O, 0), which add nothing. The scale alpha / R is the model's own: whoever
feeds factors of another rank puts their scale into B.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call

from protocol.errors import InputError
from trainer.lora import FACTOR_A, factors_of
from trainer.methods.parts import PartTensor

RANK = "rank"
LARGEST_AT_THE_GATE = 0.5  # the parity gate draws factors of up to so much over the root of their fixed axis


class LoraInputs(nn.Module):
    """Takes what a model takes, and its factors by name.

    Args:
        adapted: What ``trainer.lora.with_lora`` made.

    Raises:
        InputError: The model has no factors.
    """

    def __init__(self, adapted: nn.Module) -> None:
        super().__init__()
        self.adapted = adapted
        if not factors_of(adapted):
            raise InputError("the model has no LoRA factors", expected="one that with_lora adapted", got=type(adapted).__name__)

    def forward(self, samples: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
        """Return what the model gives for samples under these factors, A (R, I) and B (O, R) of each adapted layer."""
        output: Tensor = functional_call(self.adapted, dict(factors), (samples,))
        return output

    def factor_tensors(self) -> tuple[PartTensor, ...]:
        """Return the factors as optional inputs of a part, whose ``gathered`` is their number."""
        tensors = []
        for name, factor in factors_of(self.adapted).items():
            is_a = name.endswith(FACTOR_A)
            fixed = factor.shape[1] if is_a else factor.shape[0]
            largest = LARGEST_AT_THE_GATE / math.sqrt(fixed)
            shape: tuple[int | str, ...] = (RANK, fixed) if is_a else (fixed, RANK)
            tensors.append(PartTensor(name, "float32", shape, "LoRA factor", -largest, largest, optional=True))
        return tuple(tensors)
