"""The networks of HyperFedZero wired together: extractor -> condition -> hypernetwork -> classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from protocol.errors import InputError
from trainer.checkpoints import check_state
from trainer.hypernetwork import ChunkedHypernetwork, HypernetworkSize
from trainer.methods.distribution_embedding import DistributionExtractor
from trainer.models.mlp import FIRST_WEIGHT, MLP, Normalise
from trainer.per_sample import PerSampleWeights

EMBEDDING_FLOOR = 1e-6  # keeps the logarithm of an unused dimension finite
CONDITION = "condition"
PRIOR_FLOOR = 1e-3  # of a class that the support seems to lack

Scope = Literal["device", "sample"]
Tailored = Literal["whole", "head", "none", "input"]


class Forward(NamedTuple):
    """What a batch gives: logits (B, C), embeddings (B, E), class scores read from single embeddings (B, C) if asked for."""

    logits: Tensor
    embeddings: Tensor
    label_logits: Tensor | None


@dataclass(frozen=True)
class NetworkPlan:
    """How the networks are put together.

    Attributes:
        tailored: Which of the classifier's parameters are tailored; ``input``: none, it reads the condition beside its input.
        base: Whether the classifier has federated weights that the hypernetwork changes; else it writes them whole.
        change_scale: Size of those changes at the start, as a share of weights written whole.
        hypernetwork: Sizes of the hypernetwork.
        label_classes: Classes that a linear head must read from an embedding; 0 for no such head.
    """

    tailored: Tailored
    base: bool
    change_scale: float
    hypernetwork: HypernetworkSize
    label_classes: int


def tailored_names(classifier: nn.Module, tailored: Tailored) -> list[str]:
    """Return the parameters that are tailored: all of them, those of the last layer (the head), or none."""
    names = [name for name, _ in classifier.named_parameters()]
    if tailored == "whole":
        return names
    last_layer = names[-1].rpartition(".")[0]
    return [name for name in names if name.rpartition(".")[0] == last_layer] if tailored == "head" else []


class HyperFedZeroNetwork(nn.Module):
    """One forward pass of HyperFedZero.

    Args:
        normalise: From raw samples to model inputs.
        extractor: From model inputs to embeddings.
        classifier: The target network; without ``base`` its tailored parameters are never used as they stand.
        plan: How the networks are put together.
    """

    def __init__(self, normalise: Normalise, extractor: DistributionExtractor, classifier: nn.Module, plan: NetworkPlan) -> None:
        super().__init__()
        self.normalise = normalise
        self.extractor = extractor
        self.classifier = classifier
        self.base = plan.base
        self.reads_condition = plan.tailored == "input"
        shapes = dict(classifier.named_parameters())
        targets = {name: shapes[name].shape for name in tailored_names(classifier, plan.tailored)}
        embedding = extractor.project.out_features
        scale = plan.change_scale if plan.base else 1.0
        self.hypernetwork = ChunkedHypernetwork(targets, embedding, plan.hypernetwork, scale) if targets else None
        self.label_head = nn.Linear(embedding, plan.label_classes) if plan.label_classes else None

    @property
    def targets(self) -> dict[str, torch.Size]:
        """Return name and shape of all that a condition gives: tailored parameters, or the condition itself."""
        if self.reads_condition:
            return {CONDITION: torch.Size([self.extractor.project.out_features])}
        return {} if self.hypernetwork is None else self.hypernetwork.targets

    def generate(self, condition: Tensor) -> dict[str, Tensor]:
        """Return the tailored weights (M, *shape) by name for conditions (M, E)."""
        if self.reads_condition:
            return {CONDITION: condition}
        return {} if self.hypernetwork is None else self._with_base(self.hypernetwork(condition))

    def _with_base(self, written: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return written weights (M, *shape), added to the federated ones if there are any."""
        if not self.base:
            return written
        own = dict(self.classifier.named_parameters())
        return {name: own[name] + change for name, change in written.items()}

    def classify(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return logits (B, C) of normalised samples (B, *shape) under one set of tailored weights (*shape)."""
        if self.reads_condition:
            beside = weights[CONDITION].expand(x.shape[0], -1)  # (B, E)
            x, weights = torch.cat([x.flatten(1), beside], dim=1), {}  # (B, inputs + E)
        logits: Tensor = functional_call(self.classifier, weights, (x,))
        return logits

    def classify_each(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return logits (B, C) of normalised samples (B, *shape) under weights of their own, (B, *shape) by name."""

        def one(own: dict[str, Tensor], sample: Tensor) -> Tensor:
            return self.classify(own, sample.unsqueeze(0)).squeeze(0)  # (C,)

        return vmap(one)(weights, x)

    def classify_each_unrolled(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """Return what ``classify_each`` returns, in operations that a graph has for a batch of any size."""
        if self.reads_condition:
            return self.classify(weights, x)
        with PerSampleWeights():
            return self.classify(weights, x)

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
        if self.hypernetwork is None:
            return self.classify({name: tensor.squeeze(0) for name, tensor in self.generate(condition).items()}, x)
        units = self.hypernetwork.units(condition)
        if not (isinstance(self.classifier, MLP) and self.hypernetwork.writes_rows(FIRST_WEIGHT)):
            written = self._with_base(self.hypernetwork.write_weights(units))
            return self.classify({name: tensor.squeeze(0) for name, tensor in written.items()}, x)
        flat = x.flatten(1)  # (B, inputs)
        product = self.hypernetwork.apply_rows(FIRST_WEIGHT, units, flat)  # (B, units)
        if self.base:
            product = product + flat @ dict(self.classifier.named_parameters())[FIRST_WEIGHT].T  # (B, units)
        written = self._with_base(self.hypernetwork.write_weights(units, FIRST_WEIGHT))
        weights = {name: tensor.squeeze(0) for name, tensor in written.items()}  # (*shape)
        logits: Tensor = functional_call(self.classifier, weights, (x, product))
        return logits

    def label_posteriors(self, embeddings: Tensor) -> Tensor:
        """Return class posteriors (B, C) under equal classes, read from embeddings (B, E)."""
        logits = self._label_logits(embeddings)
        assert logits is not None, "only a network with a label head is asked"  # noqa: S101  # an invariant, not a check of input
        return torch.softmax(logits, dim=1)  # (B, C)

    def _label_logits(self, embeddings: Tensor) -> Tensor | None:
        """Return class scores (B, C) read from the logarithms of single samples' embeddings (B, E)."""
        return None if self.label_head is None else self.label_head(torch.log(embeddings + EMBEDDING_FLOOR))

    def federated_parameters(self) -> dict[str, Tensor]:
        """Return what is trained and travels: everything but classifier weights that are written whole."""
        skipped = set() if self.base or self.reads_condition else {f"classifier.{name}" for name in self.targets}
        return {name: tensor.detach() for name, tensor in self.named_parameters() if name not in skipped}


class Embed(nn.Module):
    """Entry point ``embed``: raw samples (N, *shape) -> embeddings (N, E), without noise; with class posteriors (N, E + C) if read."""

    def __init__(self, network: HyperFedZeroNetwork, *, with_prior: bool) -> None:
        super().__init__()
        self.network = network
        self.with_prior = with_prior

    def forward(self, samples: Tensor) -> Tensor:
        """Return embeddings (N, E), or (N, E + C)."""
        embeddings: Tensor = self.network.extractor(self.network.normalise(samples))  # (N, E)
        return torch.cat([embeddings, self.network.label_posteriors(embeddings)], dim=1) if self.with_prior else embeddings


class Features(nn.Module):
    """Entry point ``features``: raw samples (N, *shape) -> hidden activations (N, D)."""

    def __init__(self, network: HyperFedZeroNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, samples: Tensor) -> Tensor:
        """Return features (N, D)."""
        return self.network.extractor.features(self.network.normalise(samples))


class Generate(nn.Module):
    """Entry point ``generate``: conditions -> tailored weights (M, *shape), and the log prior (M, C) if it is read."""

    def __init__(self, network: HyperFedZeroNetwork, *, with_prior: bool) -> None:
        super().__init__()
        self.network = network
        self.with_prior = with_prior

    def forward(self, embedding: Tensor) -> tuple[Tensor, ...]:
        """Return the tailored weights of conditions (M, E), or (M, E + C) of which the last C are a class prior."""
        size = self.network.extractor.project.out_features
        weights = tuple(self.network.generate(embedding[:, :size]).values())
        return (*weights, log_prior(embedding[:, size:])) if self.with_prior else weights


class Classify(nn.Module):
    """Entry point ``classify``: raw samples (B, *shape) and tailored weights in target order -> logits (B, C)."""

    def __init__(self, network: HyperFedZeroNetwork, scope: Scope, *, with_prior: bool) -> None:
        super().__init__()
        self.network = network
        self.scope = scope
        self.with_prior = with_prior

    def forward(self, samples: Tensor, *weights: Tensor) -> Tensor:
        """Return logits (B, C); the log prior (C,), if there is one, comes last among the weights."""
        named = dict(zip(self.network.targets, weights, strict=not self.with_prior))
        x = self.network.normalise(samples)  # (B, *shape)
        if self.scope == "sample":
            return self.network.classify_each_unrolled(named, x)
        logits = self.network.classify(named, x)  # (B, C)
        return logits + weights[-1] if self.with_prior else logits


def check_unrolled(network: HyperFedZeroNetwork, sample_shape: Sequence[int]) -> None:
    """Refuse a classifier with weights of each sample's own that no graph can hold: it must compute what ``vmap`` computes.

    Raises:
        InputError: It uses its weights in a layer that cannot be written out.
    """
    generator, dtype = torch.Generator().manual_seed(0), network.extractor.project.weight.dtype
    with torch.no_grad():
        x = torch.rand((3, *sample_shape), generator=generator, dtype=dtype)  # (3, *shape)
        scores = torch.randn((3, network.extractor.project.out_features), generator=generator, dtype=dtype)  # (3, E)
        condition = torch.softmax(3 * scores, dim=1)  # (3, E)
        weights = network.generate(condition)
        expected = network.classify_each(weights, x)  # (3, C)
        hint = "use Linear, Conv2d without groups or dilation, and GroupNorm; or scope device"
        what = "the classifier cannot be exported with weights of each sample's own"
        try:
            got = network.classify_each_unrolled(weights, x)  # (3, C)
        except Exception as error:  # a user's model may raise anything
            raise InputError(what, got=f"{type(error).__name__}: {error}"[:200], hint=hint) from error
        if got.shape != expected.shape or not torch.allclose(got, expected, rtol=1e-4, atol=1e-5):
            raise InputError(what, expected="what vmap gives", got="another result", hint=hint)


def log_prior(prior: Tensor) -> Tensor:
    """Return the logarithms (..., C) of class priors, floored so that no class becomes impossible."""
    return torch.log(prior + PRIOR_FLOOR)


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
