"""Class prototypes: per-class sums and counts of features that add up over devices, and the nearest-prototype rule.

The mean over a federation is weighted by sample counts, which is what adding sums and counts gives (FedProto, Tan et
al., AAAI 2022, divides once more by the number of devices; that shrinks the prototypes and is not done here). A class
that nobody holds is absent, never a zero vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InputError, LabelError

DEFAULT_MINIMUM_COUNT = 10  # a prototype of very few samples is close to being one of them


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Sums and counts of features for the classes that occur.

    Attributes:
        classes: Class indices, ascending, (P,) int64.
        sums: Sum of the features of each class, (P, D) float64.
        counts: Samples of each class, (P,) int64, each at least 1.
    """

    classes: NDArray[np.int64]
    sums: NDArray[np.float64]
    counts: NDArray[np.int64]

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
        return Prototypes(classes, sums, counts)

    def means(self) -> NDArray[np.float32]:
        """Return the prototypes, (P, D) float32."""
        return (self.sums / self.counts[:, None]).astype(np.float32)  # (P, D)

    def at_least(self, minimum_count: int) -> Prototypes:
        """Return only the classes with at least ``minimum_count`` samples."""
        kept = self.counts >= minimum_count
        return Prototypes(self.classes[kept], self.sums[kept], self.counts[kept])


def class_statistics(features: NDArray[np.floating], labels: NDArray[np.integer]) -> Prototypes:
    """Return sums and counts per class.

    Args:
        features: (N, D) floating.
        labels: Class indices, (N,) integers.

    Raises:
        LabelError: The two have different lengths.
    """
    if len(features) != len(labels):
        raise LabelError("labels do not fit the samples", expected=f"{len(features)} labels", got=str(len(labels)))
    classes, place = np.unique(labels, return_inverse=True)
    sums = np.zeros((len(classes), features.shape[1]))  # (P, D)
    np.add.at(sums, place, features.astype(np.float64))
    return Prototypes(classes.astype(np.int64), sums, np.bincount(place, minlength=len(classes)).astype(np.int64))


def nearest_prototype(features: NDArray[np.floating], prototypes: Prototypes) -> NDArray[np.int64]:
    """Return for each sample the class whose prototype is nearest in the Euclidean distance, (N,) int64.

    Args:
        features: (N, D) floating.
        prototypes: At least one class.

    Raises:
        InputError: No class, or another feature dimension.
    """
    means = prototypes.means().astype(np.float64)  # (P, D)
    if len(means) == 0 or means.shape[1] != features.shape[1]:
        raise InputError(
            "prototypes cannot classify these features",
            expected=f"at least one prototype of {features.shape[1]} features",
            got=f"{means.shape[0]} of {means.shape[1]}",
        )
    squared = (means**2).sum(axis=1) - 2.0 * features.astype(np.float64) @ means.T  # (N, P); the sample's own norm is common
    nearest: NDArray[np.int64] = prototypes.classes[np.argmin(squared, axis=1)]
    return nearest
