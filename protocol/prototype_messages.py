"""The messages of a prototype exchange, and what prototypes must be to be believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from protocol.errors import (
    PrototypeClassError,
    PrototypeCountError,
    PrototypeDimensionError,
    PrototypeError,
    PrototypeNotFiniteError,
)
from protocol.message_checks import require

MAXIMUM_COUNT = 10**7  # of one class on one device
MAXIMUM_DEVICES = 10**6
MAXIMUM_FEATURE = 1e6


@dataclass(frozen=True, eq=False)
class PrototypeUpdate:
    """One device's class prototypes.

    Attributes:
        round: Round number.
        classes: Class indices, (P,) int64.
        means: Prototypes, (P, D) float32.
        counts: Samples of each class, (P,) int64.
    """

    KIND: ClassVar[str] = "prototype-update/1"

    round: int
    classes: NDArray[np.int64]
    means: NDArray[np.float32]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Refuse a round that cannot be."""
        require(self.round >= 0, "a round number is negative", self.round)


@dataclass(frozen=True, eq=False)
class GlobalPrototypes:
    """The federation's class prototypes.

    Attributes:
        round: Round number.
        classes: Class indices, (P,) int64; a class nobody holds is absent.
        means: Prototypes, (P, D) float32.
        counts: Samples of each class over all devices, (P,) int64.
        device_count: Devices that are counted.
    """

    KIND: ClassVar[str] = "global-prototypes/1"

    round: int
    classes: NDArray[np.int64]
    means: NDArray[np.float32]
    counts: NDArray[np.int64]
    device_count: int

    def __post_init__(self) -> None:
        """Refuse figures that cannot be."""
        require(self.round >= 0, "a round number is negative", self.round)
        require(1 <= self.device_count <= MAXIMUM_DEVICES, "a number of devices is impossible", self.device_count)


def check_prototypes(message: PrototypeUpdate | GlobalPrototypes, class_count: int, dimension: int) -> None:
    """Refuse prototypes that do not fit a bundle or cannot be true.

    Args:
        message: What came; see its attributes for shapes.
        class_count: Classes C that the bundle knows.
        dimension: Feature dimension D of the bundle.

    Raises:
        PrototypeError: No class at all, or arrays that do not belong together.
        PrototypeDimensionError: Another feature dimension.
        PrototypeClassError: A class outside 0..C-1, or one twice.
        PrototypeCountError: A count below 1 or beyond belief.
        PrototypeNotFiniteError: NaN, infinity, or absurdly large features.
    """
    classes, means, counts = message.classes, message.means, message.counts
    if classes.ndim != 1 or counts.shape != classes.shape or means.ndim != 2 or len(means) != len(classes) or len(classes) == 0:
        raise PrototypeError(
            "prototypes do not belong together",
            expected="(P,) classes, (P, D) means, (P,) counts, P at least 1",
            got=f"{classes.shape}, {means.shape}, {counts.shape}",
        )
    if means.shape[1] != dimension:
        raise PrototypeDimensionError(
            "a prototype has the wrong dimension", expected=dimension, got=means.shape[1], hint="use the same bundle"
        )
    if classes.min() < 0 or classes.max() >= class_count or len(np.unique(classes)) != len(classes):
        raise PrototypeClassError("a prototype's class is unknown or repeated", expected=f"each of 0 to {class_count - 1} at most once")
    most = MAXIMUM_COUNT * (message.device_count if isinstance(message, GlobalPrototypes) else 1)
    if counts.min() < 1 or counts.max() > most:
        raise PrototypeCountError("a prototype's count is impossible", expected=f"1 to {most}", got=f"{counts.min()} to {counts.max()}")
    with np.errstate(invalid="ignore"):
        if not (np.abs(means) <= MAXIMUM_FEATURE).all():
            raise PrototypeNotFiniteError("a prototype is not finite", expected=f"numbers up to {MAXIMUM_FEATURE:g}", got="NaN or larger")
