"""Folders of IDX files: MNIST, Fashion-MNIST, EMNIST. Train and test are merged; a federation cuts its own.

A folder may hold several sets (EMNIST's archive has six: ``emnist-balanced-train-images-idx3-ubyte.gz`` and so on). Then
the path goes on with the name of one: ``emnist/emnist-balanced``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.sources.base import SourceKind
from trainer.data.sources.emnist import emnist_dataset, is_emnist
from trainer.data.sources.files import entries
from trainer.data.sources.idx_file import read_idx
from trainer.data.sources.memory import check_fits
from trainer.data.sources.names import dataset_name

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_IMAGES = re.compile(r"(?P<stem>(?P<set>.*?)-?(?:train|t10k|test)?)-images[-.]idx.*")


def load_fashion_mnist() -> Dataset:
    """Return Fashion-MNIST, train and test merged: (70000, 28, 28) uint8, 0 to 255."""
    own = Path(os.environ.get("FEDTAILOR_DATA", "data")) / "fashion-mnist"
    for folder in (own, DEBIAN_FASHION_MNIST):
        if folder.is_dir():
            return load_idx_folder(folder, FASHION_CLASSES)
    raise DatasetError(
        "Fashion-MNIST is not on this machine",
        expected=f"its four IDX files in {own} or {DEBIAN_FASHION_MNIST}",
        hint="install Debian's package (apt-get install dataset-fashion-mnist), or pass the folder that holds the files: --data FOLDER",
    )


def load_idx_folder(path: Path, classes: tuple[str, ...] | None = None) -> Dataset:
    """Return all images (N, *shape) uint8 and labels of one set.

    Args:
        path: A folder with one set, or a folder and behind it the name of a set in it.
        classes: Names of the classes; None for those of EMNIST or plain numbers.
    """
    folder, wanted = (path, None) if path.is_dir() else (path.parent, path.name)
    name, files = _choose_set(folder, wanted)
    samples, labels = _read_set(folder, files)
    if is_emnist(name):
        return emnist_dataset(folder, name, samples, labels)
    known = classes if classes is not None else tuple(str(index) for index in range(int(labels.max(initial=0)) + 1))
    return Dataset(wanted or dataset_name(folder), samples, labels, known, 0.0, 255.0)


def _sets_in(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the image files of a folder by set and stem; of a file there packed and unpacked, the unpacked one."""
    sets: dict[str, dict[str, Path]] = {}
    for path in entries(folder):
        match = _IMAGES.fullmatch(path.name)
        if match:
            sets.setdefault(match["set"], {}).setdefault(match["stem"], path)  # "x" sorts before "x.gz"
    return sets


def _choose_set(folder: Path, wanted: str | None) -> tuple[str, dict[str, Path]]:
    """Return name and image files of the wanted set, or of the only one."""
    sets = _sets_in(folder)
    if not sets:
        names = "train-images-idx3-ubyte[.gz] and train-labels-idx1-ubyte[.gz]"
        raise DatasetError(f"{folder} holds no IDX images", expected=names, hint="pass the folder that holds the files")
    if wanted is None and len(sets) > 1:
        hint = f"name one of them: --data {folder / max(sets)}"
        raise DatasetError(f"{folder} holds several data sets", expected="one", got=", ".join(sorted(sets)), hint=hint)
    name = next(iter(sets)) if wanted is None else wanted
    if name not in sets:
        raise DatasetError(f"{folder} holds no set of that name", expected=" or ".join(filter(None, sorted(sets))), got=name)
    return name, sets[name]


def _read_set(folder: Path, files: dict[str, Path]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (N, *shape) and labels (N,) of a set's files, in the order of their names."""
    pairs = [_read_pair(stem, path) for stem, path in sorted(files.items())]
    shapes = {samples.shape[1:] for samples, _ in pairs}
    if len(shapes) > 1:
        raise DatasetError(f"{folder} holds images of different shapes", expected="one shape", got=sorted(shapes))
    check_fits(folder, sum(samples.nbytes for samples, _ in pairs), "keep fewer files in the folder")
    samples, labels = zip(*pairs, strict=True)
    return np.concatenate(samples), np.concatenate(labels).astype(np.int64)


def _read_pair(stem: str, images: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return one file of images and the labels that belong to it."""
    pattern = re.compile(re.escape(stem) + r"-labels[-.]idx.*")
    matches = [path for path in entries(images.parent) if pattern.fullmatch(path.name)]
    if not matches:
        raise DatasetError(f"labels of {images} are missing", expected=f"{stem}-labels-idx1-ubyte[.gz] beside it")
    samples, labels = read_idx(images), read_idx(matches[0])
    if labels.ndim != 1 or len(labels) != len(samples):
        raise DatasetError(f"{matches[0]} does not fit {images.name}", expected=f"({len(samples)},) labels", got=str(labels.shape))
    return samples, labels


def names_idx_set(path: Path) -> bool:
    """Return whether a path that does not exist names one of several sets in a folder (``emnist/emnist-balanced``)."""
    return not path.exists() and path.parent.is_dir() and path.name in _sets_in(path.parent)


IDX = SourceKind(
    name="idx",
    accepts="a folder with train-images-idx3-ubyte[.gz] and train-labels-idx1-ubyte[.gz]",
    recognises=lambda path: bool(_sets_in(path)) if path.is_dir() else names_idx_set(path),
    load=lambda path, _: load_idx_folder(path),
)
