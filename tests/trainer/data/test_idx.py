"""IDX files and folders of them: MNIST's form, several sets in one folder, EMNIST's peculiarities."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import DatasetError
from trainer.data.datasets import load_dataset
from trainer.data.sources import idx_folder, memory
from trainer.data.sources.idx_file import read_idx


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx_folder(folder: Path, *, compress: bool = False, prefix: str = "", test: str = "t10k") -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    samples, labels = generator.integers(0, 256, (12, 5, 4)), generator.integers(0, 3, 12)
    for part, places in (("train", slice(0, 8)), (test, slice(8, 12))):
        for kind, array in (("images-idx3", samples[places]), ("labels-idx1", labels[places])):
            content = idx_bytes(array)
            name = f"{prefix}{part}-{kind}-ubyte" + (".gz" if compress else "")
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


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"\0\0\x08\x01\0\0\0\x05abc", "truncated or too long"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "truncated or too long"),
        (b"\0\0\x08\x02\xff\xff\xff\xff\xff\xff\xff\xffabc", "too large for memory"),
    ],
)
def test_a_wrong_packed_file_is_named(tmp_path: Path, content: bytes, word: str) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(DatasetError, match=word):
        read_idx(path)


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


def test_fashion_mnist_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    (tmp_path / "fashion-mnist").mkdir()
    write_idx_folder(tmp_path / "fashion-mnist", compress=True)
    dataset = load_dataset("fashion-mnist")
    assert (dataset.name, dataset.classes[9]) == ("fashion-mnist", "ankle boot")


def test_an_empty_folder_says_what_it_should_hold(tmp_path: Path) -> None:
    for source in (str(tmp_path), f"idx:{tmp_path}"):
        with pytest.raises(DatasetError, match="train-images-idx3-ubyte"):
            load_dataset(source)


def test_missing_labels_are_named(tmp_path: Path) -> None:
    write_idx_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DatasetError, match="t10k-labels"):
        load_dataset(str(tmp_path))


def test_images_and_labels_must_fit(tmp_path: Path) -> None:
    write_idx_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(3)))
    with pytest.raises(DatasetError, match="does not fit t10k-images"):
        load_dataset(str(tmp_path))
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(4)))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((4, 6, 6))))
    with pytest.raises(DatasetError, match="different shapes"):
        load_dataset(str(tmp_path))


def test_a_file_there_packed_and_unpacked_is_read_once(tmp_path: Path) -> None:
    write_idx_folder(tmp_path)
    write_idx_folder(tmp_path, compress=True)
    assert len(load_dataset(str(tmp_path)).labels) == 12


def test_names_with_a_dot_are_read(tmp_path: Path) -> None:
    write_idx_folder(tmp_path)
    for path in list(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert len(load_dataset(str(tmp_path)).labels) == 12


def test_a_set_too_large_for_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx_folder(tmp_path)
    monkeypatch.setattr(memory, "MEMORY_LIMIT", 200)
    with pytest.raises(DatasetError, match="too large for memory"):
        load_dataset(str(tmp_path))


def test_emnist_is_turned_and_its_classes_are_named(tmp_path: Path) -> None:
    samples, labels = write_idx_folder(tmp_path, prefix="emnist-balanced-", test="test")
    (tmp_path / "emnist-balanced-mapping.txt").write_text("0 48\n1 65\n2 97\n")
    dataset = load_dataset(str(tmp_path))
    order = np.r_[8:12, 0:8]
    np.testing.assert_array_equal(dataset.samples, samples[order].swapaxes(1, 2))
    np.testing.assert_array_equal(dataset.labels, labels[order])
    assert (dataset.name, dataset.classes) == ("emnist-balanced", ("0", "A", "a"))


def test_letters_are_counted_from_one(tmp_path: Path) -> None:
    _, labels = write_idx_folder(tmp_path, prefix="emnist-letters-", test="test")
    for part, places in (("train", slice(0, 8)), ("test", slice(8, 12))):
        (tmp_path / f"emnist-letters-{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels[places] + 1))
    without_mapping = load_dataset(str(tmp_path))
    assert without_mapping.classes == tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    (tmp_path / "emnist-letters-mapping.txt").write_text("1 65 97\n2 66 98\n3 67 99\n")
    dataset = load_dataset(str(tmp_path))
    assert dataset.classes == ("A", "B", "C")
    np.testing.assert_array_equal(dataset.labels, labels[np.r_[8:12, 0:8]])
    np.testing.assert_array_equal(without_mapping.labels, dataset.labels)


@pytest.mark.parametrize(
    ("mapping", "word"), [("0 48\n", "not in its mapping"), ("0\n", "wrong line"), ("0 x\n", "wrong line"), ("0 -4", "wrong")]
)
def test_a_wrong_mapping_is_named(tmp_path: Path, mapping: str, word: str) -> None:
    write_idx_folder(tmp_path, prefix="emnist-balanced-", test="test")
    (tmp_path / "emnist-balanced-mapping.txt").write_text(mapping)
    with pytest.raises(DatasetError, match=word):
        load_dataset(str(tmp_path))


def test_one_of_several_sets_is_named_behind_the_folder(tmp_path: Path) -> None:
    write_idx_folder(tmp_path, prefix="emnist-balanced-", test="test")
    write_idx_folder(tmp_path, prefix="emnist-digits-", test="test")
    with pytest.raises(DatasetError, match=r"several data sets.*emnist-balanced, emnist-digits.*--data .*/emnist-digits"):
        load_dataset(str(tmp_path))
    assert load_dataset(f"{tmp_path}/emnist-balanced").name == "emnist-balanced"
    assert load_dataset(f"idx:{tmp_path}/emnist-digits").name == "emnist-digits"
    with pytest.raises(DatasetError, match="data set not found"):
        load_dataset(f"{tmp_path}/emnist-letters")
