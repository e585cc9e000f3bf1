"""What a device's data look like, as one vector: the distribution signature, label-free unless a setting says otherwise.

Three parts, each left out by a setting:

- features: mean and standard deviation of the bundle's features, (2 D)
- pixels: of raw samples scaled to 0..1: mean, deviation, mean absolute differences to the neighbour below and to the right,
  deviation of the samples' means, an 8-bin histogram, and the mean sample averaged to 4 x 4; where samples are no grey or
  colour images only mean, deviation, deviation of the means and histogram
- class frequencies, (C): they need labels, and are refused where a device may use samples alone

Normalised with constants of the participants that are frozen at export: (value - mean) / deviation, clipped to +-4 and
divided by sqrt(S) / 3, so that distances do not depend on the length S.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge_runtime.prototypes import check_labels
from protocol.device_blocks import SignatureBlock
from protocol.errors import EmptySupportSetError, InputError, NotAllowedError, SampleShapeError
from protocol.manifest import RawInput

Array = NDArray[np.generic]
Exact = NDArray[np.float64]

HISTOGRAM_BINS = 8
GRID = 4  # side of the averaged mean image
CLIP = 4.0
SPREAD = 3.0
SMALLEST_DEVIATION = 1e-6


@dataclass(frozen=True)
class SignatureParts:
    """Which parts a distribution signature has.

    Attributes:
        features: Statistics of the features.
        pixels: Statistics of the raw samples.
        class_frequencies: Frequencies of the classes: devices then need labels.
    """

    features: bool = True
    pixels: bool = True
    class_frequencies: bool = False

    def __post_init__(self) -> None:
        """Refuse an empty signature."""
        if not (self.features or self.pixels or self.class_frequencies):
            raise InputError("a distribution signature needs a part", expected="features, pixels or class_frequencies", got="none")


@dataclass
class _Pixels:
    """Sums over raw samples that come a batch at a time."""

    raw: RawInput
    count: int = 0
    sums: Exact = field(default_factory=lambda: np.zeros(5))
    histogram: Exact = field(default_factory=lambda: np.zeros(HISTOGRAM_BINS))
    image: Exact | None = None

    def add(self, samples: Array) -> None:
        """Take in raw samples (B, *shape)."""
        scaled = (samples.astype(np.float64) - self.raw.minimum) / (self.raw.maximum - self.raw.minimum)  # (B, *shape)
        flat = scaled.reshape(len(scaled), -1)  # (B, X)
        means = flat.mean(axis=1)  # (B,)
        images = _as_images(scaled)
        down, right = (0.0, 0.0) if images is None else _differences(images)
        self.sums += [means.sum(), (flat**2).mean(axis=1).sum(), (means**2).sum(), down, right]
        self.histogram += np.histogram(np.clip(flat, 0.0, 1.0), HISTOGRAM_BINS, (0.0, 1.0))[0] / flat.shape[1]
        if images is not None:
            self.image = images.sum(axis=0) + (0.0 if self.image is None else self.image)  # (H, W)
        self.count += len(samples)

    def values(self) -> Exact:
        """Return the statistics."""
        mean, square, mean_square, down, right = self.sums / self.count
        deviation = math.sqrt(max(square - mean**2, 0.0))
        of_means = math.sqrt(max(mean_square - mean**2, 0.0))
        plain = [mean, deviation, of_means, *(self.histogram / self.count)]
        if self.image is None:
            return np.array(plain)
        return np.array([*plain, down, right, *_averaged(self.image / self.count).ravel()])


def _as_images(scaled: Exact) -> Exact | None:
    """Return samples as grey images (B, H, W), or None where they are none of at least 4 x 4."""
    if scaled.ndim == 4:
        scaled = scaled.mean(axis=3 if scaled.shape[3] in (1, 3) else 1)  # (B, H, W)
    return scaled if scaled.ndim == 3 and min(scaled.shape[1:]) >= GRID else None


def _differences(images: Exact) -> tuple[float, float]:
    """Return the mean absolute differences to the neighbour below and to the right, summed over images (B, H, W)."""
    down, right = (np.abs(np.diff(images, axis=axis)).mean(axis=(1, 2)).sum() for axis in (1, 2))
    return float(down), float(right)


def _averaged(image: Exact) -> Exact:
    """Return an image (H, W) averaged to 4 x 4."""
    rows = [part.mean(axis=0) for part in np.array_split(image, GRID, axis=0)]
    return np.array([[part.mean() for part in np.array_split(row, GRID)] for row in rows])


class SignatureMeter:
    """Measures the distribution signature of samples that come a batch at a time.

    Args:
        parts: Which parts it has.
        raw: What the bundle says of raw samples.
        classes: Number of classes.
    """

    def __init__(self, parts: SignatureParts, raw: RawInput, classes: int) -> None:
        self._parts = parts
        self._pixels = _Pixels(raw)
        self._classes = classes
        self._frequencies = np.zeros(classes)
        self._sum: Exact = np.zeros(0)
        self._squares: Exact = np.zeros(0)
        self._count = 0

    def add(self, samples: Array, features: NDArray[np.floating] | None = None, labels: NDArray[np.integer] | None = None) -> None:
        """Take in a batch.

        Args:
            samples: Raw samples, (B, *shape).
            features: Their features, (B, D); needed for that part.
            labels: Their class indices, (B,); needed for class frequencies, refused otherwise.

        Raises:
            NotAllowedError: Labels, where a device may use samples alone.
            InputError: A part lacks what it is made of.
            LabelError: A label out of range.
        """
        if labels is not None and not self._parts.class_frequencies:
            raise NotAllowedError("a device's signature may use samples alone here", expected="no labels", got=f"{len(labels)} labels")
        if self._parts.pixels:
            self._pixels.add(samples)
        if self._parts.features:
            self._add_features(features, len(samples))
        if self._parts.class_frequencies:
            if labels is None:
                raise InputError("class frequencies need labels", expected=f"{len(samples)} labels", got="none")
            self._frequencies += np.bincount(check_labels(labels, len(samples), self._classes), minlength=self._classes)
        self._count += len(samples)

    def _add_features(self, features: NDArray[np.floating] | None, count: int) -> None:
        """Take in features (B, D)."""
        if features is None or features.ndim != 2 or len(features) != count:
            raise InputError("the signature needs features", expected=f"({count}, D)", got=None if features is None else features.shape)
        exact = features.astype(np.float64)  # (B, D)
        self._sum = exact.sum(axis=0) + (self._sum if self._count else 0.0)  # (D,)
        self._squares = (exact**2).sum(axis=0) + (self._squares if self._count else 0.0)  # (D,)

    def measure(self) -> Exact:
        """Return the signature before normalisation, (S,) float64.

        Raises:
            EmptySupportSetError: No sample was taken in.
        """
        if self._count == 0:
            raise EmptySupportSetError("there is no sample to measure", expected="at least one", got="none")
        mean = self._sum / self._count  # (D,)
        deviation = np.sqrt(np.maximum(self._squares / self._count - mean**2, 0.0))  # (D,)
        features = [mean, deviation] if self._parts.features else []
        pixels = [self._pixels.values()] if self._parts.pixels else []
        frequencies = [self._frequencies / self._count] if self._parts.class_frequencies else []
        return np.concatenate([*features, *pixels, *frequencies])


def freeze(parts: SignatureParts, measured: Iterable[Exact]) -> SignatureBlock:
    """Return the manifest's block: the parts, and the constants that participants' signatures (S,) give."""
    table = np.stack(list(measured))  # (M, S)
    deviation = np.maximum(table.std(axis=0), SMALLEST_DEVIATION)  # (S,)
    mean = tuple(map(float, table.mean(axis=0)))
    return SignatureBlock(parts.features, parts.pixels, parts.class_frequencies, mean, tuple(map(float, deviation)))


def normalise(measured: Exact, block: SignatureBlock) -> NDArray[np.float32]:
    """Return a measured signature (S,) normalised by frozen constants, (S,) float32, each entry within +-12 / sqrt(S).

    Raises:
        SampleShapeError: Of another length.
    """
    if measured.shape != (len(block.mean),):
        raise SampleShapeError("the signature has another length", expected=f"({len(block.mean)},)", got=measured.shape)
    scores = np.clip((measured - np.array(block.mean)) / np.array(block.deviation), -CLIP, CLIP)  # (S,)
    normalised: NDArray[np.float32] = (scores * SPREAD / math.sqrt(len(scores))).astype(np.float32)
    return normalised
