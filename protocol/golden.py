"""Golden samples and outputs in ``selftest.safetensors``: what they must be called and look like, before anything computes with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.errors import BundleFileError
from protocol.manifest import Manifest

GOLDEN_NAME = "selftest.safetensors"
SAMPLES, FEATURES, EMBEDDING, LOGITS = "samples", "features", "embedding", "logits"
MOST_SAMPLES = 1024


def golden_shapes(manifest: Manifest) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and shape of one row of each golden tensor that a bundle must bring, by name."""
    expected = {
        SAMPLES: (manifest.raw_input.dtype, tuple(manifest.raw_input.shape)),
        LOGITS: ("float32", (len(manifest.classes),)),
    }
    if "features" in manifest.graphs:
        expected[FEATURES] = ("float32", (manifest.feature_dimension(),))
    if manifest.personalization is not None:
        expected[EMBEDDING] = ("float32", (manifest.personalization.embedding_dimension,))
    return expected


def check_golden(manifest: Manifest, tensors: Mapping[str, Any]) -> None:
    """Refuse golden tensors that are not those of the manifest's graphs.

    Args:
        manifest: The bundle's manifest.
        tensors: Name -> array (N, ...), N from 1 to 1024.

    Raises:
        BundleFileError: A tensor is missing, unknown, of another dtype or shape, not finite, or outside the raw range.
    """
    expected = golden_shapes(manifest)
    if tensors.keys() != expected.keys():
        raise BundleFileError("the golden tensors are others than the graphs'", expected=", ".join(expected), got=", ".join(tensors))
    rows = tensors[SAMPLES].shape[0] if tensors[SAMPLES].ndim else 0
    if not 1 <= rows <= MOST_SAMPLES:
        raise BundleFileError("there are no golden samples, or too many", expected=f"1 to {MOST_SAMPLES}", got=rows)
    for name, (dtype, shape) in expected.items():
        found = tensors[name]
        if (str(found.dtype), found.shape) != (dtype, (rows, *shape)):
            got = f"{found.dtype} {found.shape}"
            raise BundleFileError(f"the golden {name} do not fit the manifest", expected=f"{dtype} {(rows, *shape)}", got=got)
        if not abs(found.astype("float64")).max() < float("inf"):  # NaN compares false
            raise BundleFileError(f"the golden {name} are not finite", got="NaN or infinity")
    raw, samples = manifest.raw_input, tensors[SAMPLES]
    if samples.min() < raw.minimum or samples.max() > raw.maximum:
        expected_range = f"{raw.minimum:g} to {raw.maximum:g}"
        raise BundleFileError(
            "the golden samples leave the raw range", expected=expected_range, got=f"{samples.min():g} to {samples.max():g}"
        )
