"""Class prototypes: per-class sums, squares and counts of features that add up over devices, and the nearest-prototype rule.

The mean over a federation is weighted by sample counts, which is what adding sums and counts gives (FedProto, Tan et
al., AAAI 2022, divides once more by the number of devices; that shrinks the prototypes and is not done here). A class
that nobody holds is absent, never a zero vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.arguments import require, whole_number
from protocol.errors import InputError, LabelError

DEFAULT_MINIMUM_COUNT = 10  # a prototype of very few samples is close to being one of them


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Sums, squares and counts of features for the classes that occur.

    Attributes:
        classes: Class indices, ascending, (P,) int64.
        sums: Sum of the features of each class, (P, D) float64.
        counts: Samples of each class, (P,) int64, each at least 1.
        squares: Sum of the squared features of each class, (P, D) float64; None where only means came over the wire.
    """

    classes: NDArray[np.int64]
    sums: NDArray[np.float64]
    counts: NDArray[np.int64]
    squares: NDArray[np.float64] | None = None

    @classmethod
    def from_means(cls, classes: NDArray[np.int64], means: NDArray[np.floating], counts: NDArray[np.int64]) -> Prototypes:
        """Return the value whose means are given: (P,) classes in any order, (P, D) means, (P,) counts."""
        order = np.argsort(classes, kind="stable")
        weighted = means.astype(np.float64) * counts[:, None]  # (P, D)
        return cls(classes[order].astype(np.int64), weighted[order], counts[order].astype(np.int64))

    def __add__(self, other: Prototypes) -> Prototypes:
        """Return the statistics of both together, classes of either kept."""
        if self.sums.shape[1] != other.sums.shape[1]:
            raise InputError(
                "prototypes of different feature dimensions cannot be added",
                expected=f"{self.sums.shape[1]} features",
                got=f"{other.sums.shape[1]}",
                hint="use prototypes made with one bundle",
            )
        both = np.concatenate([self.classes, other.classes])
        classes, place = np.unique(both, return_inverse=True)
        sums = np.zeros((len(classes), self.sums.shape[1]))  # (P, D)
        counts = np.zeros(len(classes), dtype=np.int64)
        np.add.at(sums, place, np.concatenate([self.sums, other.sums]))
        np.add.at(counts, place, np.concatenate([self.counts, other.counts]))
        if self.squares is None or other.squares is None:
            return Prototypes(classes, sums, counts)
        squares = np.zeros_like(sums)
        np.add.at(squares, place, np.concatenate([self.squares, other.squares]))
        return Prototypes(classes, sums, counts, squares)

    def means(self) -> NDArray[np.float32]:
        """Return the prototypes, (P, D) float32."""
        return (self.sums / self.counts[:, None]).astype(np.float32)  # (P, D)

    def deviations(self) -> NDArray[np.float32]:
        """Return the standard deviation of each class's features, (P, D) float32, over all its samples.

        Raises:
            InputError: They are not known: means came over the wire.
        """
        if self.squares is None:
            raise InputError("these prototypes have no deviations", expected="statistics of features", got="means and counts alone")
        means = self.sums / self.counts[:, None]  # (P, D)
        variances = np.maximum(self.squares / self.counts[:, None] - means**2, 0.0)  # (P, D); rounding may leave -1e-17
        return np.sqrt(variances).astype(np.float32)

    def at_least(self, minimum_count: int) -> Prototypes:
        """Return only the classes with at least ``minimum_count`` samples."""
        kept = self.counts >= minimum_count
        squares = None if self.squares is None else self.squares[kept]
        return Prototypes(self.classes[kept], self.sums[kept], self.counts[kept], squares)


def class_statistics(features: NDArray[np.floating], labels: NDArray[np.integer], classes: int | None = None) -> Prototypes:
    """Return sums, squares and counts per class.

    Args:
        features: (N, D) floating.
        labels: Class indices, (N,) integers.
        classes: How many classes there are, if that is known.

    Raises:
        InputError: The features are no finite matrix.
        LabelError: Labels of another length, or out of range.
    """
    features = check_features(features)
    if classes is not None:
        whole_number(classes, "the number of classes")
    if not np.isfinite(features).all():
        raise InputError("features cannot be summed", expected="(N, D), finite", got=f"{features.shape}")
    found, place = np.unique(check_labels(labels, len(features), classes), return_inverse=True)
    exact = features.astype(np.float64)  # (N, D)
    sums, squares = np.zeros((2, len(found), features.shape[1]))  # (P, D) each
    np.add.at(sums, place, exact)
    np.add.at(squares, place, exact**2)
    return Prototypes(found, sums, np.bincount(place, minlength=len(found)).astype(np.int64), squares)


def check_features(features: object) -> NDArray[np.floating]:
    """Return features (N, D) as they are.

    Raises:
        InputError: No matrix of real numbers.
    """
    found = require(features, np.ndarray, "the features", "an array (N, D) of numbers")
    if found.ndim != 2 or found.dtype.kind not in "fiu":
        raise InputError("the features are wrong", expected="(N, D) real numbers", got=f"{found.shape} {found.dtype}")
    return found


def check_labels(labels: NDArray[np.integer], count: int, classes: int | None = None) -> NDArray[np.int64]:
    """Return labels (N,) as int64.

    Raises:
        LabelError: Not that many integers, or out of range.
    """
    require(labels, np.ndarray, "the labels", f"an array ({count},) of integers", LabelError)
    if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        raise LabelError("labels do not fit the samples", expected=f"({count},) integers", got=f"{labels.shape} {labels.dtype}")
    if count and (labels.min() < 0 or (classes is not None and labels.max() >= classes)):
        expected = "0 or more" if classes is None else f"0 to {classes - 1}"
        raise LabelError("a label is out of range", expected=expected, got=f"{labels.min()} to {labels.max()}")
    return labels.astype(np.int64)


def nearest_prototype(features: NDArray[np.floating], prototypes: Prototypes) -> NDArray[np.int64]:
    """Return for each sample the class whose prototype is nearest in the Euclidean distance, (N,) int64.

    Args:
        features: (N, D) floating.
        prototypes: At least one class.

    Raises:
        InputError: No class, or another feature dimension.
    """
    features = check_features(features)
    means = require(prototypes, Prototypes, "the prototypes", "edge_runtime.Prototypes").means().astype(np.float64)  # (P, D)
    if len(means) == 0 or means.shape[1] != features.shape[1]:
        raise InputError(
            "prototypes cannot classify these features",
            expected=f"at least one prototype of {features.shape[1]} features",
            got=f"{means.shape[0]} of {means.shape[1]}",
        )
    squared = (means**2).sum(axis=1) - 2.0 * features.astype(np.float64) @ means.T  # (N, P); the sample's own norm is common
    nearest: NDArray[np.int64] = prototypes.classes[np.argmin(squared, axis=1)]
    return nearest
