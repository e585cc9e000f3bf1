"""What tables have in common, whatever their file format: which column is the label, and classes from its values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.sources.names import ordered_names

LABEL_NAMES = ("label", "class", "target")


def label_column(path: Path, columns: Sequence[str], wanted: str | None) -> int:
    """Return the place of the label column: the wanted one, one named label, class or target, or the last.

    Raises:
        DatasetError: The wanted one is absent, or there are no other columns.
    """
    if len(columns) < 2:
        raise DatasetError(f"{path} has too few columns", expected="features and a label", got=list(columns))
    if wanted is not None and wanted not in columns:
        raise DatasetError(f"{path} has no column {wanted!r}", expected="one of its columns", got=", ".join(columns)[:200])
    if wanted is not None:
        return list(columns).index(wanted)
    lowered = [name.strip().lower() for name in columns]
    return next((lowered.index(name) for name in LABEL_NAMES if name in lowered), len(columns) - 1)


def dataset_from_table(path: Path, features: NDArray[np.generic], labels: Sequence[str]) -> Dataset:
    """Return a data set from features (N, F) uint8 or float32 and the text of each label.

    Raises:
        DatasetError: The table has no rows, or holds NaN or infinity.
    """
    if len(features) == 0:
        raise DatasetError(f"{path} has no rows", expected="at least one row below the names")
    finite = np.isfinite(features.astype(np.float32, copy=False)).all(axis=1)  # (N,)
    if not finite.all():
        row = int(np.argmin(finite)) + 1
        raise DatasetError(f"{path} holds NaN or infinity", got=f"in row {row} of its values", hint="remove or fill such rows")
    classes = ordered_names(labels)
    places = {name: place for place, name in enumerate(classes)}
    indices = np.array([places[label] for label in labels], np.int64)  # (N,)
    low, top = (0.0, 255.0) if features.dtype == np.uint8 else (float(features.min(initial=0.0)), float(features.max(initial=1.0)))
    return Dataset(path.stem, features, indices, classes, low, top)
