"""Files of samples become labels beside an agent, and what cannot be read gets its reason."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np

from edge_runtime.bundle import Bundle
from edge_runtime.predictions import Predictions
from tests.releases import Release
from trainer.data.device_folders import write_device_folders


def answer(folder: Path, name: str) -> dict[str, object]:
    path = folder / "predictions" / f"{name}.json"
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    content: dict[str, object] = json.loads(path.read_text())
    return content


def test_new_files_are_classified_and_bad_ones_named(release: Release, tmp_path: Path) -> None:
    write_device_folders(tmp_path / "all", *release.data())
    folder = tmp_path / "device"
    shutil.copytree(tmp_path / "all" / "new-00", folder)
    samples = np.load(folder / "query.npy")[:7]
    bundle = Bundle.open(release.bundle, release.trusted)
    predictions = Predictions(folder)
    predictions.start()
    try:
        np.save(folder / "new" / "early.npy", samples)  # before there is a classifier
        predictions.use(bundle)
        expected = bundle.personalize(np.load(folder / "support.npy")).predict(samples).tolist()
        assert answer(folder, "early")["labels"] == expected
        (folder / "new" / "bad.npy").write_bytes(b"\x93NUMPY nonsense")
        np.save(folder / "new" / "shape.npy", samples[:, :3])
        assert "shape" in str(answer(folder, "shape")["error"])
        assert "error" in answer(folder, "bad")
        np.save(folder / "new" / "later.npy", samples[:2])
        assert answer(folder, "later")["labels"] == expected[:2]
    finally:
        predictions.close()
    assert sorted(path.name for path in (folder / "new").iterdir()) == []
    assert predictions.samples == 9
