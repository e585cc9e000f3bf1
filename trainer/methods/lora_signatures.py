"""Distribution signatures on the server: measured as devices measure them, kept raw, compared after normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_runtime.distribution_signature import SignatureMeter, SignatureParts, freeze, normalise
from protocol.device_blocks import SignatureBlock
from protocol.manifest import RawInput
from trainer.methods.base import State, Task
from trainer.methods.names import part_of, prefixed

RAW, MEAN, DEVIATION = "signature.", "signature_mean", "signature_deviation"
BETWEEN = 20.0  # squared distance of normalised signatures from different domains, about

Compute = Callable[[Tensor], Tensor]  # raw samples (N, *shape) -> features (N, D)


def measure(task: Task, parts: SignatureParts, features: Compute, samples: Tensor, labels: Tensor | None) -> Tensor:
    """Return the signature (S,) float64 of raw samples (N, *shape), by the code that devices run."""
    raw = RawInput(task.dtype, task.sample_shape, task.minimum, task.maximum, "")
    meter = SignatureMeter(parts, raw, len(task.classes))
    with torch.no_grad():
        own = features(samples).to("cpu", torch.float32).numpy() if parts.features else None
    known = labels.cpu().numpy() if labels is not None and parts.class_frequencies else None
    meter.add(samples.cpu().numpy(), own, known)
    return torch.from_numpy(meter.measure())


def registered(told: Mapping[str, Tensor], parts: SignatureParts, length: int) -> State:
    """Return what the server keeps of signatures (S,) by device: themselves, and the constants that normalise them."""
    if not told:
        return {MEAN: torch.zeros(length, dtype=torch.float64), DEVIATION: torch.ones(length, dtype=torch.float64)}
    block = freeze(parts, [each.cpu().numpy() for each in told.values()])
    constants = {MEAN: torch.tensor(block.mean, dtype=torch.float64), DEVIATION: torch.tensor(block.deviation, dtype=torch.float64)}
    return prefixed(RAW, told) | constants


def normalised(server: State, parts: SignatureParts, raw: Tensor) -> NDArray[np.float32]:
    """Return one raw signature (S,) normalised by the server's constants."""
    block = SignatureBlock(parts.features, parts.pixels, parts.class_frequencies, *_constants(server))
    return normalise(raw.cpu().numpy(), block)


def _constants(server: State) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return means and deviations as the manifest's block holds them."""
    return tuple(server[MEAN].tolist()), tuple(server[DEVIATION].tolist())


def table(server: State, parts: SignatureParts) -> tuple[tuple[str, ...], Tensor]:
    """Return the registered devices in their order, and their normalised signatures (M, S) float32."""
    raw = part_of(server, RAW)
    rows = [normalised(server, parts, each) for each in raw.values()]
    return tuple(raw), torch.from_numpy(np.stack(rows)) if rows else torch.zeros(0, len(server[MEAN]))


def kernel(signatures: Tensor, width: float) -> Tensor:
    """Return exp(-d^2 / (2 width^2 20)) for all pairs of signatures (M, S), as (M, M): 1 for a device and itself."""
    squared = torch.cdist(signatures.double(), signatures.double(), compute_mode="donot_use_mm_for_euclid_dist").square()
    return torch.exp(-squared / (2.0 * width**2 * BETWEEN))


def log_densities(server: State, features: Tensor) -> Tensor:
    """Return how likely each registered device finds each sample's features (N, D), as (N, M).

    A signature begins with mean and deviation of the features: that is a Gaussian of independent entries.
    """
    raw = torch.stack(list(part_of(server, RAW).values()))  # (M, S)
    size = features.shape[1]
    mean, deviation = raw[:, :size], raw[:, size : 2 * size].clamp(min=1e-3)  # (M, D)
    scaled = (features.double().unsqueeze(1) - mean) / deviation  # (N, M, D)
    return -(0.5 * scaled.square() + deviation.log()).sum(dim=2)
