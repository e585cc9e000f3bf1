"""A classifier of stored features: each sample gets the class of the nearest prototype. numpy alone, no ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.prototypes import DEFAULT_MINIMUM_COUNT, Prototypes, check_features, class_statistics, nearest_prototype
from protocol.arguments import require
from protocol.errors import InputError, SampleNotFiniteError
from protocol.files import read_limited, write_atomically
from protocol.manifest import MAXIMUM_FILE_BYTES
from protocol.tensors import decode_tensors, encode_tensors

SUMS, SQUARES, COUNTS, CLASSES = "sums", "squares", "counts", "classes"


@dataclass(frozen=True, eq=False)
class PrototypeClassifier:
    """Nearest prototype in the Euclidean distance.

    Attributes:
        prototypes: Of at least one class.
        names: Class names in index order, C of them.
    """

    prototypes: Prototypes
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse prototypes that cannot classify."""
        held = require(self.prototypes, Prototypes, "the prototypes", "edge_runtime.Prototypes").classes
        if not len(held) or held.max() >= len(self.names):
            raise InputError("prototypes do not fit the classes", expected=f"classes 0 to {len(self.names) - 1}", got=held.tolist())

    @classmethod
    def fit(
        cls,
        features: NDArray[np.floating],
        labels: NDArray[np.integer],
        names: Sequence[str],
        minimum_count: int = DEFAULT_MINIMUM_COUNT,
    ) -> PrototypeClassifier:
        """Return the classifier of labelled features; a class with too few samples is left out.

        Args:
            features: (N, D), finite.
            labels: Class indices, (N,).
            names: Class names in index order.
            minimum_count: Samples that a class needs.

        Raises:
            InputError: Features that are no finite matrix, or no class with enough samples.
            LabelError: Labels of another length, or out of range.
        """
        found = class_statistics(features, labels, len(names))
        kept = found.at_least(minimum_count)
        if not len(kept.classes):
            most = int(found.counts.max(initial=0))
            raise InputError("no class has enough samples", expected=f"at least {minimum_count} of one class", got=f"at most {most}")
        return cls(kept, tuple(names))

    def predict(self, features: NDArray[np.floating]) -> NDArray[np.str_]:
        """Return class names (B,) of features (B, D).

        Raises:
            InputError: Of another dimension.
            SampleNotFiniteError: NaN or infinity.
        """
        features = check_features(features)
        if not np.isfinite(features).all():
            raise SampleNotFiniteError("features hold NaN or infinity", hint="look at the samples")
        if features.ndim != 2:
            raise InputError("features have the wrong shape", expected="(B, D)", got=features.shape)
        labels: NDArray[np.str_] = np.array(self.names).take(nearest_prototype(features, self.prototypes))
        return labels

    def save(self, path: Path) -> None:
        """Write the prototypes as safetensors, whole or not at all; class names stay with the caller."""
        held = self.prototypes
        squares = {} if held.squares is None else {SQUARES: held.squares}
        write_atomically(path, encode_tensors({CLASSES: held.classes, SUMS: held.sums, COUNTS: held.counts, **squares}))

    @classmethod
    def open(cls, path: Path, names: Sequence[str]) -> PrototypeClassifier:
        """Read what ``save`` wrote.

        Raises:
            InputError: The file is damaged or does not fit the classes.
        """
        tensors = decode_tensors(read_limited(path, MAXIMUM_FILE_BYTES), error=InputError)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        held, sums, counts, squares = (tensors.get(name) for name in (CLASSES, SUMS, COUNTS, SQUARES))
        if held is None or sums is None or counts is None or sums.ndim != 2:
            raise InputError(f"{path} holds no prototypes", expected=f"{CLASSES}, {SUMS}, {COUNTS}", got=shapes)
        if held.shape != counts.shape or held.shape != sums.shape[:1] or (squares is not None and squares.shape != sums.shape):
            raise InputError(f"{path} contradicts itself", got=shapes)
        if not (counts.astype(np.int64) > 0).all():
            raise InputError(f"{path} holds a class without samples")
        exact = None if squares is None else squares.astype(np.float64)
        return cls(Prototypes(held.astype(np.int64), sums.astype(np.float64), counts.astype(np.int64), exact), tuple(names))
