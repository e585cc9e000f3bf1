"""Loaders by name or path: scikit-learn's digits, Fashion-MNIST, a folder of IDX files, an ``.npz`` file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.arrays import read_arrays
from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.idx import read_idx

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
MAXIMUM_CLASSES = 10_000
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def load_dataset(source: str) -> Dataset:
    """Return the data set that ``source`` names.

    Args:
        source: ``digits``, ``fashion-mnist``, a folder with IDX files, or an ``.npz`` file with ``samples`` and ``labels``.

    Raises:
        DatasetError: It is absent or corrupt; the message says which file and what to do.
    """
    if source == "digits":
        return _digits()
    if source == "fashion-mnist":
        return _fashion_mnist()
    path = Path(source)
    if path.is_dir():
        return _idx_folder(path, path.name, None)
    if path.suffix == ".npz" and path.is_file():
        return _npz(path)
    raise DatasetError(
        "data set not found", expected="digits, fashion-mnist, a folder of IDX files, or an .npz file", got=source, hint="check the path"
    )


def _digits() -> Dataset:
    """Return the 1,797 handwritten digits that scikit-learn carries: (N, 8, 8) uint8, 0 to 16."""
    from sklearn.datasets import load_digits  # takes seconds to import, and only the digits need it

    digits = load_digits()
    return Dataset("digits", digits.images.astype(np.uint8), digits.target.astype(np.int64), tuple("0123456789"), 0.0, 16.0)


def _fashion_mnist() -> Dataset:
    """Return Fashion-MNIST, train and test merged: (70000, 28, 28) uint8, 0 to 255."""
    own = Path(os.environ.get("FEDTAILOR_DATA", "data")) / "fashion-mnist"
    for folder in (own, DEBIAN_FASHION_MNIST):
        if folder.is_dir():
            return _idx_folder(folder, "fashion-mnist", FASHION_CLASSES)
    raise DatasetError(
        "Fashion-MNIST is not on this machine",
        expected=f"its four IDX files in {own} or {DEBIAN_FASHION_MNIST}",
        hint="install Debian's package (apt-get install dataset-fashion-mnist), or pass the folder that holds the files: --data FOLDER",
    )


def _idx_folder(folder: Path, name: str, classes: tuple[str, ...] | None) -> Dataset:
    """Return all images and labels of an IDX folder, train and test merged."""
    images = sorted(path for path in folder.iterdir() if "-images-idx" in path.name)
    if not images:
        names = "train-images-idx3-ubyte[.gz] and train-labels-idx1-ubyte[.gz]"
        raise DatasetError(f"{folder} holds no IDX images", expected=names, hint="pass the folder that holds the files")
    samples, labels = zip(*(_idx_pair(path) for path in images), strict=True)
    merged = np.concatenate(labels).astype(np.int64)
    known = classes if classes is not None else tuple(str(index) for index in range(int(merged.max(initial=0)) + 1))
    return Dataset(name, np.concatenate(samples), merged, known, 0.0, 255.0)


def _idx_pair(images: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return one file of images and the labels that belong to it."""
    stem = images.name.split("-images-idx")[0]
    matches = sorted(images.parent.glob(f"{stem}-labels-idx*"))
    if not matches:
        raise DatasetError(f"labels of {images} are missing", expected=f"{stem}-labels-idx1-ubyte[.gz] beside it")
    samples, labels = read_idx(images), read_idx(matches[0])
    if labels.ndim != 1 or len(labels) != len(samples):
        raise DatasetError(f"{matches[0]} does not fit {images.name}", expected=f"({len(samples)},) labels", got=str(labels.shape))
    return samples, labels


def _npz(path: Path) -> Dataset:
    """Return the arrays ``samples`` (N, ...) and ``labels`` (N,) of an .npz file; ``classes`` (C,) names are optional."""
    found = read_arrays(path, DatasetError)
    missing = {"samples", "labels"} - found.keys()
    if missing:
        raise DatasetError(f"{path} lacks arrays", expected="samples and labels", got=f"only {sorted(found)}")
    samples, labels = found["samples"], found["labels"]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DatasetError(f"{path}: labels have the wrong form", expected="(N,) integers", got=f"{labels.shape} {labels.dtype}")
    if samples.dtype not in (np.uint8, np.float32):
        raise DatasetError(f"{path}: samples have the wrong dtype", expected="uint8 or float32", got=str(samples.dtype))
    if samples.ndim < 2 or 0 in samples.shape or len(samples) != len(labels):
        raise DatasetError(f"{path}: samples have the wrong shape", expected=f"({len(labels)}, at least one more axis)", got=samples.shape)
    last = int(labels.max())
    names = found["classes"].ravel() if "classes" in found else np.arange(min(last, MAXIMUM_CLASSES) + 1)
    top = 255.0 if samples.dtype == np.uint8 else float(samples.max(initial=1.0))
    low = 0.0 if samples.dtype == np.uint8 else float(samples.min(initial=0.0))
    return Dataset(path.stem, samples, labels.astype(np.int64), tuple(map(str, names)), low, top)
