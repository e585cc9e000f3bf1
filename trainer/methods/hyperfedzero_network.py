"""The networks of HyperFedZero wired together: extractor -> condition -> hypernetwork -> classifier."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from trainer.checkpoints import check_state
from trainer.hypernetwork import ChunkedHypernetwork, HypernetworkSize
from trainer.methods.distribution_embedding import DistributionExtractor
from trainer.models.mlp import FIRST_WEIGHT, MLP, Normalise

EMBEDDING_FLOOR = 1e-6  # keeps the logarithm of an unused dimension finite

Scope = Literal["device", "sample"]
Tailored = Literal["whole", "head"]


class Forward(NamedTuple):
    """What a batch gives: logits (B, C), embeddings (B, E), class scores read from single embeddings (B, C) if asked for."""

    logits: Tensor
    embeddings: Tensor
    label_logits: Tensor | None


def tailored_names(classifier: nn.Module, tailored: Tailored) -> list[str]:
    """Return the parameters that are generated: all of them, or those of the last layer (the head)."""
    names = [name for name, _ in classifier.named_parameters()]
    if tailored == "whole":
        return names
    last_layer = names[-1].rpartition(".")[0]
    return [name for name in names if name.rpartition(".")[0] == last_layer]


class HyperFedZeroNetwork(nn.Module):
    """One forward pass of HyperFedZero.

    Args:
        normalise: From raw samples to model inputs.
        extractor: From model inputs to embeddings.
        classifier: The target network; its tailored parameters are never used as they stand.
        tailored: Which of its parameters are generated.
        size: Sizes of the hypernetwork.
        label_classes: Classes that a linear head must read from an embedding, in training only; 0 for no such head.
    """

    def __init__(
        self,
        normalise: Normalise,
        extractor: DistributionExtractor,
        classifier: nn.Module,
        tailored: Tailored,
        size: HypernetworkSize,
        label_classes: int = 0,
    ) -> None:
        super().__init__()
        self.normalise = normalise
        self.extractor = extractor
        self.classifier = classifier
        shapes = dict(classifier.named_parameters())
        targets = {name: shapes[name].shape for name in tailored_names(classifier, tailored)}
        embedding = extractor.project.out_features
        self.hypernetwork = ChunkedHypernetwork(targets, embedding, size)
        self.label_head = nn.Linear(embedding, label_classes) if label_classes else None

    def generate(self, condition: Tensor) -> dict[str, Tensor]:
        """Return the tailored weights (M, *shape) by name for conditions (M, E)."""
        weights: dict[str, Tensor] = self.hypernetwork(condition)
        return weights

    def classify(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return logits (B, C) of normalised samples (B, *shape) under one set of tailored weights (*shape)."""
        logits: Tensor = functional_call(self.classifier, weights, (x,))
        return logits

    def classify_each(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return logits (B, C) of normalised samples (B, *shape) under weights of their own, (B, *shape) by name."""

        def one(own: dict[str, Tensor], sample: Tensor) -> Tensor:
            return self.classify(own, sample.unsqueeze(0)).squeeze(0)  # (C,)

        return vmap(one)(weights, x)

    def forward(self, samples: Tensor, noise: Tensor | None, scope: Scope) -> Forward:
        """Return what one device's batch of raw samples (B, *shape) gives.

        Args:
            samples: Raw samples, (B, *shape).
            noise: Standard normal numbers, (B, E), or None.
            scope: ``device``: the batch's mean embedding makes one classifier; ``sample``: each sample makes its own.
        """
        x = self.normalise(samples)  # (B, *shape)
        embeddings = self.extractor(x, noise)  # (B, E)
        if scope == "sample":
            logits = self.classify_each(self.generate(embeddings), x)  # (B, C)
            return Forward(logits, embeddings, self._label_logits(embeddings))
        condition = embeddings.mean(dim=0, keepdim=True)  # (1, E)
        return Forward(self._classify_under(condition, x), embeddings, self._label_logits(embeddings))

    def _classify_under(self, condition: Tensor, x: Tensor) -> Tensor:
        """Return logits (B, C) of normalised samples (B, *shape) under the classifier of one condition (1, E)."""
        units = self.hypernetwork.units(condition)
        in_rows = isinstance(self.classifier, MLP) and self.hypernetwork.writes_rows(FIRST_WEIGHT)
        written = self.hypernetwork.write_weights(units, FIRST_WEIGHT if in_rows else None)
        weights = {name: tensor.squeeze(0) for name, tensor in written.items()}  # (*shape)
        product = self.hypernetwork.apply_rows(FIRST_WEIGHT, units, x.flatten(1)) if in_rows else None  # (B, units)
        inputs = (x,) if product is None else (x, product)
        logits: Tensor = functional_call(self.classifier, weights, inputs)
        return logits

    def _label_logits(self, embeddings: Tensor) -> Tensor | None:
        """Return class scores (B, C) read from the logarithms of single samples' embeddings (B, E)."""
        return None if self.label_head is None else self.label_head(torch.log(embeddings + EMBEDDING_FLOOR))

    def federated_parameters(self) -> dict[str, Tensor]:
        """Return what is trained and travels: everything but the classifier's tailored parameters."""
        skipped = {f"classifier.{name}" for name in self.hypernetwork.targets}
        return {name: tensor.detach() for name, tensor in self.named_parameters() if name not in skipped}


class Embed(nn.Module):
    """Entry point ``embed``: raw samples (N, *shape) -> embeddings (N, E), without noise."""

    def __init__(self, network: HyperFedZeroNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, samples: Tensor) -> Tensor:
        """Return embeddings (N, E)."""
        embeddings: Tensor = self.network.extractor(self.network.normalise(samples))
        return embeddings


class Features(nn.Module):
    """Entry point ``features``: raw samples (N, *shape) -> hidden activations (N, D)."""

    def __init__(self, network: HyperFedZeroNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, samples: Tensor) -> Tensor:
        """Return features (N, D)."""
        return self.network.extractor.features(self.network.normalise(samples))


class Generate(nn.Module):
    """Entry point ``generate``: conditions (M, E) -> tailored weights (M, *shape), a tuple in target order."""

    def __init__(self, network: HyperFedZeroNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, embedding: Tensor) -> tuple[Tensor, ...]:
        """Return the tailored weights."""
        return tuple(self.network.generate(embedding).values())


class Classify(nn.Module):
    """Entry point ``classify``: raw samples (B, *shape) and tailored weights in target order -> logits (B, C)."""

    def __init__(self, network: HyperFedZeroNetwork, scope: Scope) -> None:
        super().__init__()
        self.network = network
        self.scope = scope

    def forward(self, samples: Tensor, *weights: Tensor) -> Tensor:
        """Return logits (B, C)."""
        named = dict(zip(self.network.hypernetwork.targets, weights, strict=True))
        x = self.network.normalise(samples)  # (B, *shape)
        return self.network.classify_each(named, x) if self.scope == "sample" else self.network.classify(named, x)


def load_frozen(network: HyperFedZeroNetwork, state: dict[str, Tensor]) -> HyperFedZeroNetwork:
    """Return the network holding exactly this state, no longer trainable.

    Raises:
        RunFolderError: The state is of another network.
    """
    check_state(network.federated_parameters(), state)
    parameters = dict(network.named_parameters())
    with torch.no_grad():
        for name, tensor in state.items():
            parameters[name].copy_(tensor)
    return network.requires_grad_(False)
