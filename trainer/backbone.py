"""Frozen backbones: a data set's samples become the features of a network that nobody trains, computed once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protocol.errors import InputError, NumericalError
from trainer.data.dataset import Dataset
from trainer.feature_cache import Features, cached_file, read_features, write_features
from trainer.models.factories import call_factory
from trainer.models.onnx_network import OnnxNetwork

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Backbone:
    """A frozen network.

    Attributes:
        name: Where it comes from.
        compute: Raw samples (B, *shape) to features (B, ...).
        digest: Digest of all that the features depend on, or None when that cannot be known: then nothing is cached.
    """

    name: str
    compute: Callable[[NDArray[np.generic]], NDArray[np.generic]]
    digest: str | None


def load_backbone(source: str | Path) -> Backbone:
    """Return the backbone that ``source`` names.

    Args:
        source: An ``.onnx`` file whose first input takes raw samples and whose first output are features; or
            ``module:factory``, called without arguments for a torch module, or another callable, that takes raw samples
            as a tensor (B, *shape) in their own dtype and gives features (B, ...).

    Raises:
        InputError: It is absent, or no backbone.
        MissingExtraError: ONNX Runtime is needed and not installed.
    """
    name = str(source)
    if name.endswith(".onnx"):
        network = OnnxNetwork(Path(source))
        return Backbone(name, network, f"onnx {network.digest}")
    if ":" not in name:
        raise InputError("backbone is unknown", expected="an .onnx file, or module:factory", got=name)
    made = call_factory(name)
    if not callable(made):
        raise InputError(f"{name} returned no backbone", expected="a torch.nn.Module or a callable", got=type(made).__name__)
    if isinstance(made, nn.Module):
        made.eval().requires_grad_(requires_grad=False)
        return Backbone(name, _on_arrays(name, made), f"torch {_module_digest(made)}")
    return Backbone(name, _on_arrays(name, made), None)


def _on_arrays(name: str, network: Callable[[Tensor], Any]) -> Callable[[NDArray[np.generic]], NDArray[np.generic]]:
    """Return a torch backbone as a function of arrays."""
    first = next(network.parameters(), None) if isinstance(network, nn.Module) else None
    device = None if first is None else first.device

    def compute(samples: NDArray[np.generic]) -> NDArray[np.generic]:
        try:
            with torch.inference_mode():
                features = network(torch.tensor(samples, device=device))  # (B, ...)
        except Exception as error:  # a user's backbone may raise anything
            got = f"samples {samples.shape} {samples.dtype}: {type(error).__name__}: {error}"
            raise InputError(f"{name} cannot take the samples", got=got, hint="it is given raw samples") from error
        if not isinstance(features, Tensor):
            raise InputError(f"{name} gives no features", expected="a tensor with the batch first", got=type(features).__name__)
        array: NDArray[np.generic] = features.to("cpu", torch.float32).numpy()  # (B, ...)
        return array

    return compute


def _module_digest(module: nn.Module) -> str:
    """Return a digest of a module's class, of its structure as it prints itself, and of all its tensors."""
    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__}\n{module!r}".encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def features_of(
    dataset: Dataset, backbone: Backbone, *, batch_size: int = 256, cache: Path | None = None, progress: Progress | None = None
) -> Dataset:
    """Return the data set with features (N, D) float32 in place of its samples; their range becomes the raw range.

    Features are cached by content: of the samples and of the backbone. The code of a torch module's ``forward`` is not
    part of that; after changing it alone, empty the cache.

    Args:
        dataset: Raw samples (N, *shape).
        backbone: What computes the features.
        batch_size: Samples computed at a time.
        cache: Folder of cached features; None for ``fedtailor/features`` in the user's cache folder.
        progress: Called with the number of samples done and N.

    Raises:
        InputError: The backbone cannot take the samples.
        NumericalError: A feature is not finite, or all are the same.
    """
    if batch_size < 1:
        raise InputError("batch size is wrong", expected="at least 1", got=batch_size)
    path = None if backbone.digest is None else cached_file(cache, dataset.samples, backbone.digest)
    features = None if path is None else read_features(path, len(dataset.samples))
    if features is None:
        features = _compute(dataset.samples, backbone, batch_size, progress)
        if path is not None:
            write_features(path, features)
    elif progress is not None:
        progress(len(features), len(features))
    minimum, maximum = float(features.min()), float(features.max())
    if minimum == maximum:
        raise NumericalError(f"{backbone.name} gives the same feature for everything", expected="features that differ", got=minimum)
    return replace(dataset, name=f"{dataset.name}-features", samples=features, minimum=minimum, maximum=maximum)


def _compute(samples: NDArray[np.generic], backbone: Backbone, batch_size: int, progress: Progress | None) -> Features:
    """Return features (N, D) of raw samples (N, *shape)."""
    pieces: list[Features] = []
    for start in range(0, len(samples), batch_size):
        batch = samples[start : start + batch_size]  # (B, *shape)
        pieces.append(_flat_features(backbone, batch, start))  # (B, D)
        if pieces[-1].shape[1] != pieces[0].shape[1]:
            raise InputError(f"{backbone.name} changes its features", expected=pieces[0].shape[1], got=pieces[-1].shape[1])
        if progress is not None:
            progress(start + len(batch), len(samples))
    return np.concatenate(pieces)  # (N, D)


def _flat_features(backbone: Backbone, batch: NDArray[np.generic], start: int) -> Features:
    """Return checked features (B, D) of a batch (B, *shape) that begins at sample ``start``."""
    features = backbone.compute(batch)  # (B, ...)
    if features.ndim == 0 or len(features) != len(batch) or features.size == 0:
        expected = f"features ({len(batch)}, ...)"
        raise InputError(f"{backbone.name} gives no features for each sample", expected=expected, got=features.shape)
    with np.errstate(over="ignore"):  # an overflow becomes infinity, which is told below
        flat = features.reshape(len(batch), -1).astype(np.float32)  # (B, D)
    finite = np.isfinite(flat).all(axis=1)  # (B,)
    if not finite.all():
        hint = "look at this sample and at the range that the backbone expects"
        raise NumericalError(f"{backbone.name} gives NaN or infinity for sample {start + int(finite.argmin())}", hint=hint)
    return flat
