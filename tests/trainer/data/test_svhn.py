"""Street View House Numbers, on MATLAB files written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from protocol.errors import DatasetError
from trainer.data.datasets import load_dataset
from trainer.data.sources import memory
from trainer.data.sources.svhn import FILES


def write_svhn(path: Path, seed: int, **changes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    images, labels = generator.integers(0, 256, (32, 32, 3, 5), np.uint8), np.array([[10], [1], [2], [9], [10]], np.uint8)
    savemat(path, {"X": images, "y": labels} | changes, do_compression=True)
    return images, labels


def test_images_come_first_and_ten_is_zero(tmp_path: Path) -> None:
    written = [write_svhn(tmp_path / name, seed)[0] for seed, name in enumerate(FILES)]
    for source in (str(tmp_path), f"svhn:{tmp_path}"):
        dataset = load_dataset(source)
        np.testing.assert_array_equal(dataset.samples, np.concatenate(written, axis=3).transpose(3, 2, 0, 1))
        assert dataset.labels.tolist() == [0, 1, 2, 9, 0] * 2
        assert (dataset.name, dataset.samples.shape, str(dataset.samples.dtype)) == ("svhn", (10, 3, 32, 32), "uint8")
    assert len(load_dataset(str(tmp_path / FILES[0])).labels) == 5


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_svhn(tmp_path / FILES[0], 0)
    with pytest.raises(DatasetError, match=r"test_32x32.mat is missing"):
        load_dataset(str(tmp_path))


@pytest.mark.parametrize("kept", [0, 1, 100, 150, 1000, 5000])
def test_a_truncated_file_is_named(tmp_path: Path, kept: int) -> None:
    path = tmp_path / FILES[0]
    write_svhn(path, 0)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DatasetError, match=FILES[0]):
        load_dataset(str(path))


def test_the_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILES[0]
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\x02IM" + b"\x89HDF\r\n\x1a\n" + bytes(500))
    with pytest.raises(DatasetError, match="expected a MATLAB file of version 5"):
        load_dataset(str(path))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"X": np.zeros((28, 28, 3, 5), np.uint8)}, "no images of SVHN"),
        ({"X": np.zeros((32, 32, 3, 5))}, "no images of SVHN"),
        ({"y": np.zeros((4, 1), np.uint8)}, "no fitting labels"),
        ({"y": np.array([["a"]] * 5)}, "no fitting labels"),
        ({"y": np.zeros((5, 1), np.uint8)}, "no digit"),
        ({"y": np.full((5, 1), 11, np.uint8)}, "no digit"),
    ],
)
def test_foreign_content_is_named(tmp_path: Path, changes: dict[str, np.ndarray], word: str) -> None:
    write_svhn(tmp_path / "x.mat", 0, **changes)
    with pytest.raises(DatasetError, match=word):
        load_dataset(str(tmp_path / "x.mat"))


def test_a_file_too_large_for_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_svhn(tmp_path / "x.mat", 0)
    monkeypatch.setattr(memory, "MEMORY_LIMIT", 5 * 3072)
    with pytest.raises(DatasetError, match="too large"):
        load_dataset(str(tmp_path / "x.mat"))
