"""The distribution signature of samples from any source, with a bundle's features and constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge_runtime.distribution_signature import SignatureMeter, SignatureParts, normalise
from edge_runtime.sources import Source, batches
from protocol.errors import BundleError, LabelError

if TYPE_CHECKING:
    from edge_runtime.bundle import Bundle


def measure_source(bundle: Bundle, source: Source, labels: NDArray[np.integer] | None) -> NDArray[np.float32]:
    """Return the normalised signature, (S,) float32; see ``Bundle.distribution_signature``."""
    manifest = bundle.manifest
    block = manifest.distribution_signature
    if block is None:
        raise BundleError("this bundle has no distribution signature", hint="export it again where its data lie")
    parts = SignatureParts(block.features, block.pixels, block.class_frequencies)
    meter, seen = SignatureMeter(parts, manifest.raw_input, len(manifest.classes)), 0
    for piece in batches(source, manifest.raw_input):
        features = bundle.features(piece.samples) if parts.features else None
        own = None if labels is None else labels[seen : seen + len(piece.samples)]
        meter.add(piece.samples, features, own)
        seen += len(piece.samples)
    if labels is not None and len(labels) != seen:
        raise LabelError("labels do not fit the samples", expected=f"{seen} labels", got=len(labels))
    return normalise(meter.measure(), block)
