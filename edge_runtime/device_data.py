"""A device's own data folder: ``support.npy``, and where they exist ``labels.npy``, ``query.npy``, ``query_labels.npy``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_runtime.samples import read_samples
from protocol.arrays import read_array
from protocol.errors import LabelError
from protocol.manifest import Manifest

Array = NDArray[np.generic]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class DeviceData:
    """Where a device's data lie."""

    folder: Path
    manifest: Manifest

    def support(self) -> Array:
        """Return the local samples, raw, (N, *shape)."""
        return self._samples("support")

    def query(self) -> Array:
        """Return the samples to classify, raw, (Q, *shape)."""
        return self._samples("query")

    def labels(self) -> Labels | None:
        """Return the class indices of the support, (N,) int64, or None: this device has no labels and sends nothing."""
        return self._labels("labels", len(self.support()))

    def query_labels(self) -> Labels | None:
        """Return the class indices of the query, (Q,) int64, or None; they serve to score predictions, nothing else."""
        return self._labels("query_labels", len(self.query()))

    def _samples(self, name: str) -> Array:
        """Return checked samples of one file."""
        return read_samples(self.folder / f"{name}.npy", self.manifest.raw_input)[1]

    def _labels(self, name: str, count: int) -> Labels | None:
        """Return checked labels of one file."""
        path = self.folder / f"{name}.npy"
        if not path.exists():
            return None
        labels = read_array(path, LabelError)
        classes = len(self.manifest.classes)
        if labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
            raise LabelError(f"{path} does not fit the samples", expected=f"({count},) integers", got=f"{labels.shape} {labels.dtype}")
        if count and not (labels.min() >= 0 and labels.max() < classes):
            raise LabelError(f"{path} holds an unknown class", expected=f"0 to {classes - 1}", got=f"{labels.min()} to {labels.max()}")
        indices: Labels = labels.astype(np.int64)
        return indices
