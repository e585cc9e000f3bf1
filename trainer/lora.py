"""Low-rank adaptation of linear layers (Hu et al., "LoRA", arXiv 2106.09685) as pure functions of the factors.

A layer y = x W^T + c becomes y = x W^T + c + scale * (x A) B. A is (inputs, R) and B is (R, outputs): the paper's A and B
transposed, so that samples come first and a factor of rank 0 is an ordinary empty matrix. The scale is a constant: the
rank may change after a graph is made, so whoever wants alpha / R puts it into B.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from protocol.errors import InputError
from trainer.methods.parts import PartTensor

RANK = "rank"
FACTOR_A, FACTOR_B = "lora_a", "lora_b"
LARGEST_AT_THE_GATE = 0.5  # the parity gate draws factors up to so much over the root of the axis that they are summed over


def lora_linear(x: Tensor, weight: Tensor, bias: Tensor | None, factors: tuple[Tensor, Tensor], scale: float = 1.0) -> Tensor:
    """Return adapted features (..., outputs).

    Args:
        x: (..., inputs).
        weight: (outputs, inputs).
        bias: (outputs,), or None.
        factors: A (inputs, R) and B (R, outputs); R may be 0.
        scale: Factor of the low-rank term.
    """
    a, b = factors
    # Subtracted, not added: ONNX Runtime 1.19 fuses a product and a sum into Gemm, which refuses factors of rank 0 there.
    return nn.functional.linear(x, weight, bias) - (x @ a) @ (-scale * b)


class LoraLinear(nn.Module):
    """A linear layer with factors beside it: parameters ``lora_a`` (inputs, R) and ``lora_b`` (R, outputs), of rank 0 until given."""

    def __init__(self, layer: nn.Linear, scale: float) -> None:
        super().__init__()
        self.layer = layer
        self.scale = scale
        self.lora_a = nn.Parameter(layer.weight.new_zeros(layer.in_features, 0))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(0, layer.out_features))

    def forward(self, x: Tensor) -> Tensor:
        """Return adapted features (..., outputs) of x (..., inputs)."""
        return lora_linear(x, self.layer.weight, self.layer.bias, (self.lora_a, self.lora_b), self.scale)


class LoraModel(nn.Module):
    """A model whose factors are arguments.

    Args:
        model: The model; it is copied, and its weights are frozen.
        pattern: Regular expression that a linear layer's whole dotted name must match.
        scale: Factor of every low-rank term.

    Raises:
        InputError: No linear layer has such a name.
    """

    def __init__(self, model: nn.Module, pattern: str, scale: float = 1.0) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        layers = {name: each for name, each in self.model.named_modules() if isinstance(each, nn.Linear)}
        self.layers = tuple(name for name in layers if re.fullmatch(pattern, name))
        if not self.layers:
            raise InputError("no linear layer is adapted", expected=f"a pattern for some of {', '.join(layers) or 'none'}", got=pattern)
        for name in self.layers:
            parent, _, own = name.rpartition(".")
            setattr(self.model.get_submodule(parent), own, LoraLinear(layers[name], scale))

    def factor_shapes(self, rank: int | str = RANK) -> dict[str, tuple[int | str, int | str]]:
        """Return name -> shape of all factors, A before B, layer by layer."""
        shapes: dict[str, tuple[int | str, int | str]] = {}
        for name in self.layers:
            layer = self.model.get_submodule(name).get_submodule("layer")
            assert isinstance(layer, nn.Linear), "only linear layers were replaced"  # noqa: S101  # an invariant
            shapes[f"{name}.{FACTOR_A}"] = (layer.in_features, rank)
            shapes[f"{name}.{FACTOR_B}"] = (rank, layer.out_features)
        return shapes

    def forward(self, x: Tensor, factors: Mapping[str, Tensor]) -> Tensor:
        """Return what the model gives for x under the factors; a layer without factors is not adapted."""
        output: Tensor = functional_call(self.model, dict(factors), (x,))
        return output


def initial_factors(model: LoraModel, rank: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return factors of this rank that change nothing yet: A normal with variance 1 / inputs, B zero.

    Raises:
        InputError: The rank is not positive.
    """
    if rank < 1:
        raise InputError("the rank is wrong", expected="at least 1", got=rank)
    factors = {}
    for name, (rows, columns) in model.factor_shapes(rank).items():
        shape = (int(rows), int(columns))
        is_a = name.endswith(FACTOR_A)
        factors[name] = torch.randn(shape, generator=generator) / math.sqrt(shape[0]) if is_a else torch.zeros(shape)
    return factors


def factor_tensors(model: LoraModel) -> tuple[PartTensor, ...]:
    """Return the factors as optional inputs of a part, the last ``len`` of them gathered into one dictionary."""
    tensors = []
    for name, shape in model.factor_shapes().items():
        largest = LARGEST_AT_THE_GATE / math.sqrt(max(size for size in shape if isinstance(size, int)))
        tensors.append(PartTensor(name, "float32", shape, "LoRA factor", -largest, largest, optional=True))
    return tuple(tensors)
