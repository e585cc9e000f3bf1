"""Loaders on tiny files of the true format."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import DatasetError
from trainer.data.datasets import load_dataset
from trainer.data.sources import idx_folder
from trainer.data.sources.idx_file import read_idx


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx_folder(folder: Path, *, compress: bool) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    samples, labels = generator.integers(0, 256, (12, 5, 4)), generator.integers(0, 3, 12)
    for prefix, part in (("train", slice(0, 8)), ("t10k", slice(8, 12))):
        for kind, array in (("images-idx3", samples[part]), ("labels-idx1", labels[part])):
            content = idx_bytes(array)
            name = f"{prefix}-{kind}-ubyte" + (".gz" if compress else "")
            (folder / name).write_bytes(gzip.compress(content) if compress else content)
    return samples, labels


@pytest.mark.parametrize("compress", [False, True])
def test_an_idx_folder_is_read_whole(tmp_path: Path, compress: bool) -> None:
    samples, labels = write_idx_folder(tmp_path, compress=compress)
    dataset = load_dataset(str(tmp_path))
    order = np.r_[8:12, 0:8]  # files are taken in the order of their names
    np.testing.assert_array_equal(dataset.samples, samples[order])
    np.testing.assert_array_equal(dataset.labels, labels[order])
    assert dataset.samples.dtype == np.uint8


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not an IDX file"),
        (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "not an IDX file"),
        (b"\0\0\x08\x03\0\0\0\x01", "ends inside its header"),
        (b"\0\0\x08\x01\0\0\0\x05abc", "truncated or too long"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "truncated or too long"),
        (b"\0\0\x08\x02\xff\xff\xff\xff\xff\xff\xff\xffabc", "truncated or too long"),
    ],
)
def test_a_wrong_idx_file_is_named(tmp_path: Path, content: bytes, word: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=word) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)


def test_a_truncated_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((3, 3))))[:-6])
    with pytest.raises(DatasetError, match="cannot be read"):
        read_idx(path)


def test_absent_fashion_mnist_says_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idx_folder, "DEBIAN_FASHION_MNIST", tmp_path / "nothing")
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match=r"apt-get install dataset-fashion-mnist.*--data FOLDER"):
        load_dataset("fashion-mnist")


@pytest.mark.parametrize("source", ["nonsense", "/nowhere/at/all", "x.npz"])
def test_an_unknown_source_is_an_error(source: str) -> None:
    with pytest.raises(DatasetError, match="data set not found"):
        load_dataset(source)


def test_an_empty_folder_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="train-images-idx3-ubyte"):
        load_dataset(str(tmp_path))


def test_missing_labels_are_named(tmp_path: Path) -> None:
    write_idx_folder(tmp_path, compress=False)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DatasetError, match="t10k-labels"):
        load_dataset(str(tmp_path))


def test_npz_is_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, samples=np.zeros((4, 3), np.float32), labels=np.array([0, 1, 1, 0]), classes=np.array(["no", "yes"]))
    dataset = load_dataset(str(path))
    assert dataset.classes == ("no", "yes")
    assert dataset.sample_shape == (3,)
    np.savez(path, samples=np.full((4, 3), np.nan, np.float32), labels=np.array([0, 1, 1, 0]))
    with pytest.raises(DatasetError, match="NaN"):
        load_dataset(str(path))
    np.savez(path, samples=np.zeros((4, 3)))
    with pytest.raises(DatasetError, match="lacks arrays"):
        load_dataset(str(path))
    path.write_bytes(b"PK nonsense")
    with pytest.raises(DatasetError, match="cannot be read"):
        load_dataset(str(path))


def test_digits_are_raw() -> None:
    dataset = load_dataset("digits")
    assert dataset.samples.shape == (1797, 8, 8)
    assert dataset.samples.dtype == np.uint8
    assert dataset.samples.max() == 16
