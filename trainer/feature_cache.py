"""Features of frozen networks on disk, by the content of what they were computed from."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InputError
from protocol.files import read_limited, write_atomically
from protocol.tensors import TensorLimits, decode_tensors, encode_tensors

LOGGER = logging.getLogger(__name__)
VERSION = 1

Features = NDArray[np.float32]


def cached_file(folder: Path | None, samples: NDArray[np.generic], backbone: str) -> Path:
    """Return where the features of these samples belong.

    Args:
        folder: Folder of cached features; None for ``fedtailor/features`` in the user's cache folder.
        samples: Raw samples, (N, *shape).
        backbone: Digest of all that the features depend on besides the samples.
    """
    facts = {"version": VERSION, "backbone": backbone, "dtype": samples.dtype.str, "shape": samples.shape}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(samples).data)
    return (folder or _default_folder()) / f"{digest.hexdigest()}.safetensors"


def _default_folder() -> Path:
    """Return the folder of cached features in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedtailor" / "features"


def read_features(path: Path, count: int) -> Features | None:
    """Return the features (N, D) of ``count`` samples in a cache file; None if it is absent or damaged."""
    try:
        stored = decode_tensors(read_limited(path, path.lstat().st_size), TensorLimits(magnitude=None), InputError)
        features = np.asarray(stored["features"], dtype=np.float32)  # (N, D)
        if features.ndim != 2 or len(features) != count or stored["digest"].tobytes() != _digest(features).tobytes():
            raise InputError("these are not the features that were stored", expected=f"({count}, D)", got=features.shape)
    except FileNotFoundError:
        return None
    except (OSError, InputError, KeyError) as error:
        LOGGER.warning("%s is damaged, its features are computed again: %s", path, error)
        return None
    return features


def write_features(path: Path, features: Features) -> None:
    """Store features (N, D); a cache that cannot be written costs time and nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, encode_tensors({"features": features, "digest": _digest(features)}))
    except OSError as error:
        LOGGER.warning("features are not cached: %s", error)


def _digest(features: Features) -> NDArray[np.uint8]:
    """Return the SHA-256 of features (N, D) as (32,) bytes."""
    return np.frombuffer(hashlib.sha256(np.ascontiguousarray(features).data).digest(), np.uint8)
