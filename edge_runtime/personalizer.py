"""From unlabelled samples to the weights of a device's own classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from protocol.errors import NumericalError

if TYPE_CHECKING:
    from edge_runtime.bundle import Bundle

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class TailoredWeights:
    """What personalization made.

    Attributes:
        weights: Name -> generated tensor, (*shape) float32; empty when each sample makes its own, or none are needed.
        embedding: Mean distribution embedding of the support set, (E,) float32; None when the bundle has no embedding.
        support_size: Samples that it was made from.
    """

    weights: dict[str, Floats]
    embedding: Floats | None
    support_size: int


def tailor(bundle: Bundle, unlabelled: NDArray[np.generic]) -> TailoredWeights:
    """Return the classifier weights for a support set.

    Args:
        bundle: An open bundle.
        unlabelled: Checked raw samples, (N, *shape), N at least 1.

    Raises:
        NumericalError: The generated weights are not finite.
    """
    way = bundle.manifest.personalization
    if way is None:
        return TailoredWeights({}, None, len(unlabelled))
    embedding = bundle.embed(unlabelled).mean(axis=0, dtype=np.float64).astype(np.float32)  # (E,)
    if way.scope == "sample":
        return TailoredWeights({}, embedding, len(unlabelled))
    return TailoredWeights({name: tensor[0] for name, tensor in generate(bundle, embedding[None]).items()}, embedding, len(unlabelled))


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
