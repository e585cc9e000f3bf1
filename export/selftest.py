"""Golden inputs and outputs that travel in the bundle, so that a device can see whether it computes alike.

The inputs are made up at random within the raw range: no training data ever enters a bundle.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edge_runtime.sessions import open_session
from protocol.manifest import Manifest
from protocol.tensors import encode_tensors

GOLDEN_SAMPLES = 8
SEED = 7


def golden_samples(manifest: Manifest, files: Mapping[str, bytes]) -> bytes:
    """Return safetensors bytes with raw samples and what each entry point makes of them.

    Args:
        manifest: The bundle's manifest.
        files: Its graph files by path.
    """
    raw = manifest.raw_input
    uniform = np.random.default_rng(SEED).uniform(raw.minimum, raw.maximum, (GOLDEN_SAMPLES, *raw.shape))
    samples: NDArray[np.generic] = uniform.astype(raw.dtype)
    tensors: dict[str, NDArray[np.generic]] = {"samples": samples}

    def run(entry_point: str, feeds: dict[str, NDArray[np.generic]]) -> list[NDArray[np.float32]]:
        return open_session(files[manifest.graphs[entry_point].file], manifest.minimum_onnxruntime).run(feeds)

    if "features" in manifest.graphs:
        tensors["features"] = run("features", {"samples": samples})[0]
    feeds = {"samples": samples}
    if manifest.personalization is not None:
        embedding = run("embed", {"samples": samples})[0]  # (N, E)
        tensors["embedding"] = embedding
        per_device = manifest.personalization.scope == "device"
        generated = run("generate", {"embedding": embedding.mean(axis=0, keepdims=True) if per_device else embedding})
        names = [output.name for output in manifest.graphs["generate"].outputs]
        feeds |= {name: tensor[0] if per_device else tensor for name, tensor in zip(names, generated, strict=True)}
    tensors["logits"] = run("classify", feeds)[0]
    return encode_tensors(tensors)
