"""CIFAR's binary version, on records written here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.errors import DatasetError
from trainer.data.datasets import load_dataset
from trainer.data.sources.cifar import LAYOUT_10, LAYOUT_100, Layout

BOTH = pytest.mark.parametrize("layout", [LAYOUT_10, LAYOUT_100], ids=lambda layout: layout.name)


def write_cifar(folder: Path, layout: Layout, each: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Write ``each`` records a file and return the pixels (N, 3, 32, 32) and labels (N,) in the order of the files."""
    generator = np.random.default_rng(0)
    count = each * len(layout.files)
    pixels, labels = generator.integers(0, 256, (count, 3, 32, 32), np.uint8), generator.integers(0, 4, count, np.uint8)
    for number, name in enumerate(layout.files):
        places = range(number * each, (number + 1) * each)
        coarse = b"\x13" * (layout.label_bytes - 1)
        (folder / name).write_bytes(b"".join(coarse + bytes([labels[place]]) + pixels[place].tobytes() for place in places))
    (folder / layout.names).write_text("cat\ndog\nship\nfrog\n\n")
    return pixels, labels


@BOTH
def test_records_become_planes_and_labels(tmp_path: Path, layout: Layout) -> None:
    pixels, labels = write_cifar(tmp_path, layout)
    for source in (str(tmp_path), f"{layout.name}:{tmp_path}"):
        dataset = load_dataset(source)
        assert (dataset.name, dataset.classes, str(dataset.samples.dtype)) == (layout.name, ("cat", "dog", "ship", "frog"), "uint8")
        np.testing.assert_array_equal(dataset.samples, pixels)
        np.testing.assert_array_equal(dataset.labels, labels)


@BOTH
@pytest.mark.parametrize("length", [0, 1, 3072, 3 * 3075])
def test_a_truncated_file_is_named(tmp_path: Path, layout: Layout, length: int) -> None:
    write_cifar(tmp_path, layout)
    path = tmp_path / layout.files[-1]
    path.write_bytes(bytes(length))
    with pytest.raises(DatasetError, match=r"truncated.*fetch the file again") as caught:
        load_dataset(str(tmp_path))
    assert str(path) in str(caught.value)


@BOTH
def test_a_missing_file_is_named(tmp_path: Path, layout: Layout) -> None:
    write_cifar(tmp_path, layout)
    for name in (layout.files[-1], layout.names):
        kept = (tmp_path / name).read_bytes()
        (tmp_path / name).unlink()
        with pytest.raises(DatasetError, match=f"{name} is missing"):
            load_dataset(str(tmp_path))
        (tmp_path / name).write_bytes(kept)


@BOTH
def test_the_pickled_version_is_refused_unread(tmp_path: Path, layout: Layout) -> None:
    for name in layout.pickled:
        (tmp_path / name).write_bytes(b"\x80\x02}q\x01.")
    for source in (str(tmp_path), f"{layout.name}:{tmp_path}"):
        with pytest.raises(DatasetError, match=r"pickled files.*use the binary version"):
            load_dataset(source)


def test_a_label_without_a_name_is_refused(tmp_path: Path) -> None:
    write_cifar(tmp_path, LAYOUT_10)
    (tmp_path / LAYOUT_10.names).write_text("cat\ndog\n")
    with pytest.raises(DatasetError, match="outside the classes"):
        load_dataset(str(tmp_path))
