"""From unlabelled samples to the weights of a device's own classifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_runtime.label_shift import Calibration, estimate_prior
from edge_runtime.sources import NamedBatch, Source, batches
from edge_runtime.support import EmbeddingStatistics, SupportStatistics, advice
from protocol.errors import EmptySupportSetError, InputError, NumericalError

if TYPE_CHECKING:
    from edge_runtime.bundle import Bundle

Floats = NDArray[np.float32]

LOG_PRIOR = "weight.log_prior"  # the class prior that a method itself reads from the support; correction replaces it
CORRECTION_SAMPLES = 1024  # support samples that label-shift correction looks at: more hardly change a class prior


@dataclass(frozen=True, eq=False)
class Correction:
    """Label-shift correction of a classifier: log-probabilities are ``scale * logits + shift``.

    Attributes:
        scale: Inverse temperature, above 0.
        shift: (C,) float32: bias and the logarithm of the device's class prior.
    """

    scale: float
    shift: Floats


@dataclass(frozen=True, eq=False)
class TailoredWeights:
    """What personalization made.

    Attributes:
        weights: Name -> generated tensor, (*shape) float32; empty when each sample makes its own, or none are needed.
        embedding: Mean distribution embedding of the support set, (E,) float32; None when the bundle has no embedding.
        support_size: Samples that it was made from.
        covariance: Of the support's embeddings, (E, E) float32; None when the bundle has no embedding.
        correction: Label-shift correction, or None.
        advice: Sentences about a support set that may not serve.
    """

    weights: dict[str, Floats]
    embedding: Floats | None
    support_size: int
    covariance: Floats | None = None
    correction: Correction | None = None
    advice: tuple[str, ...] = ()


def tailor(bundle: Bundle, unlabelled: Source, *, correct: bool = False) -> TailoredWeights:
    """Return the classifier weights for a support set, of which a bounded number of samples is in memory at a time.

    Args:
        bundle: An open bundle.
        unlabelled: Raw samples; see ``edge_runtime.sources.batches``.
        correct: Whether to correct for the device's class prior, by expectation maximisation over up to 1,024 samples.

    Raises:
        EmptySupportSetError: No sample.
        InputError: Samples that do not fit, or a correction without a calibration.
        NumericalError: The generated weights are not finite.
    """
    manifest = bundle.manifest
    way = manifest.personalization
    if correct and manifest.calibration is None:
        raise InputError("this bundle cannot correct label shift", expected="a calibration in its manifest", hint="export it again")
    support, embedded, kept = SupportStatistics(), EmbeddingStatistics(), list[NDArray[np.generic]]()
    for piece in _not_none(bundle, batches(unlabelled, manifest.raw_input)):
        support.add(piece.samples)
        if way is not None:
            embedded.add(bundle.embed(piece.samples))
        if correct and support.count - len(piece.samples) < CORRECTION_SAMPLES:
            kept.append(piece.samples)
    found = TailoredWeights({}, None, support.count, advice=advice(support, manifest.raw_input, way))
    if way is not None:
        found = replace(found, embedding=embedded.mean(), covariance=embedded.covariance())
        found = regenerate(bundle, found)
    return corrected_for(bundle, found, np.concatenate(kept)[:CORRECTION_SAMPLES]) if correct else found


def regenerate(bundle: Bundle, tailored: TailoredWeights) -> TailoredWeights:
    """Return what was tailored with weights that follow from its embedding."""
    way, embedding = bundle.manifest.personalization, tailored.embedding
    if way is None or embedding is None or way.scope == "sample":
        return tailored
    weights = {name: tensor[0] for name, tensor in generate(bundle, embedding[None]).items()}
    return replace(tailored, weights=weights)


def corrected_for(bundle: Bundle, tailored: TailoredWeights, support: NDArray[np.generic]) -> TailoredWeights:
    """Return what was tailored with label shift corrected by the class prior of support samples (N, *shape), N at least 1."""
    from edge_runtime.classifier import Classifier  # it needs this module too

    block = bundle.manifest.calibration
    if block is None:
        return tailored
    plain = replace(tailored, weights=_without_prior(tailored.weights), correction=None)
    calibration = Calibration(block.scale, np.array(block.bias))
    prior = estimate_prior(Classifier(bundle, plain).logits(support), calibration)  # (C,)
    return replace(plain, correction=Correction(block.scale, (calibration.bias + np.log(prior)).astype(np.float32)))


def _without_prior(weights: dict[str, Floats]) -> dict[str, Floats]:
    """Return weights with the class prior that the method itself read taken out."""
    return {**weights, LOG_PRIOR: np.zeros_like(weights[LOG_PRIOR])} if LOG_PRIOR in weights else weights


def _not_none(bundle: Bundle, pieces: Iterator[NamedBatch]) -> Iterator[NamedBatch]:
    """Yield the batches of a support set, of which there must be one."""
    count = 0
    for piece in pieces:
        count += 1
        yield piece
    if count == 0:
        way = bundle.manifest.personalization
        expected = f"about {way.support_size} samples" if way else "at least one sample"
        raise EmptySupportSetError("there is no sample to personalise from", expected=expected, got="none")


def generate(bundle: Bundle, embeddings: Floats) -> dict[str, Floats]:
    """Return generated tensors by name, (M, *shape) float32, for embeddings (M, E).

    Raises:
        NumericalError: They are not finite.
    """
    outputs = bundle.session("generate").run({"embedding": embeddings})
    names = [output.name for output in bundle.manifest.graphs["generate"].outputs]
    for name, tensor in zip(names, outputs, strict=True):
        if not np.isfinite(tensor).all():
            raise NumericalError(f"the generated tensor {name} holds NaN or infinity", hint="is this bundle meant for such data?")
    return dict(zip(names, outputs, strict=True))
