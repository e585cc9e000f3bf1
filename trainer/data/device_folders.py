"""Device folders: what each simulated device would have on its own disk.

- ``support.npy``: local samples, raw, (N, *shape); unlabelled for a new device
- ``labels.npy``: class indices of the support, (N,) int64; participants only
- ``query.npy``: samples to classify, (Q, *shape)
- ``query_labels.npy``: class indices of the query, (Q,) int64, for scoring after prediction
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainer.data.federation import Answers, FederatedData


def write_device_folders(root: Path, data: FederatedData, answers: Answers) -> None:
    """Write one folder for each participant and each new device."""
    for client in data.participants:
        arrays = {"support": client.samples, "labels": client.labels, "query": client.test_samples, "query_labels": client.test_labels}
        _write(root / client.device, arrays)
    for device in data.new_devices:
        arrays = {"support": device.support, "query": device.query, "query_labels": answers.query_labels[device.device]}
        _write(root / device.device, arrays)


def _write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays as .npy files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
