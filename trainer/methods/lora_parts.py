"""What a device needs of HyperLoRA: features, the generator, and the classifier whose factors and head are inputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from trainer.methods.base import State, Task
from trainer.methods.lora_generator import LoraGenerator
from trainer.methods.names import part_of
from trainer.methods.parts import Part, PartTensor

WEIGHT = "weight."
LARGEST_ENTRY = 12.0  # of a signature of length S, times the root of S


class Generate(nn.Module):
    """Signatures -> tensors in a fixed order."""

    def __init__(self, generator: LoraGenerator, names: Sequence[str]) -> None:
        super().__init__()
        self.generator, self.names = generator, tuple(names)

    def forward(self, signatures: Tensor) -> tuple[Tensor, ...]:
        """Return tensors (M, *shape) for signatures (M, S)."""
        written = self.generator(signatures)
        return tuple(written[name] for name in self.names)


class ClassifyAdapted(nn.Module):
    """Samples and what adapts the backbone -> logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, samples: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Return logits (B, C) of raw samples (B, *shape) under factors and head by name."""
        logits: Tensor = functional_call(self.network, part_of(weights, WEIGHT), (samples,))
        return logits


def without_head(network: nn.Sequential, head: str) -> nn.Sequential:
    """Return the frozen network up to its head: raw samples (B, *shape) -> features (B, D); fresh factors add nothing."""
    features = copy.deepcopy(network).requires_grad_(requires_grad=False)
    parent, _, own = head.rpartition(".")
    setattr(features[1].get_submodule(parent), own, nn.Identity())
    return features


Networks: TypeAlias = tuple[nn.Module, nn.Module, LoraGenerator]


def adapted_parts(task: Task, networks: Networks, adapter: State, signature_length: int) -> tuple[Part, ...]:
    """Return ``features``, ``generate_lora`` and ``classify``.

    Args:
        task: The task.
        networks: The backbone up to its head, the adapted network, and the trained generator.
        adapter: Factors and head by name, of which names and shapes matter.
        signature_length: Length S of a signature.
    """
    backbone, network, generator = networks
    largest = LARGEST_ENTRY / signature_length**0.5
    samples, shapes = task.samples_tensor(), {name: tuple(tensor.shape) for name, tensor in adapter.items()}
    with torch.no_grad():
        width = backbone(torch.zeros(1, *task.sample_shape)).shape[1]
    signature = PartTensor("signature", "float32", ("batch", signature_length), "normalised distribution signature", -largest, largest)
    written = tuple(PartTensor(WEIGHT + name, "float32", ("batch", *shape), "factor or head") for name, shape in shapes.items())
    inputs = tuple(PartTensor(WEIGHT + name, "float32", shape, "factor or head", -0.2, 0.2) for name, shape in shapes.items())
    features = PartTensor("features", "float32", ("batch", width), "features of the frozen backbone")
    logits = PartTensor("logits", "float32", ("batch", len(task.classes)), "class scores before the softmax")
    return (
        Part("features", backbone, (samples,), (features,)),
        Part("generate_lora", Generate(generator, list(shapes)), (signature,), written),
        Part("classify", ClassifyAdapted(network), (samples, *inputs), (logits,), judged_by_label=True, gathered=len(inputs)),
    )
