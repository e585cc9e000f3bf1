"""A folder with one folder of images for each class, perhaps below ``train``, ``val`` and ``test``."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.sources.base import LoadOptions, SourceKind
from trainer.data.sources.files import entries, subfolders
from trainer.data.sources.images import image_files, is_image, read_images
from trainer.data.sources.names import dataset_name, ordered_names

SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test"})


def load_image_folder(folder: Path, options: LoadOptions) -> Dataset:
    """Return all images of a folder, (N, H, W) or (N, 3, H, W) uint8; the class is the name of an image's folder.

    Raises:
        DatasetError: A class holds no image, or one cannot be read.
    """
    inside = subfolders(folder)
    parts = inside if are_splits(inside) else [folder]
    found = [(path, name) for part in parts for path, name in images_by_class(part)]
    if not found:
        raise DatasetError(f"{folder} holds no folder of images", expected="one folder of images for each class")
    classes = ordered_names(name for _, name in found)
    places = {name: place for place, name in enumerate(classes)}
    labels = np.array([places[name] for _, name in found], np.int64)  # (N,)
    samples = read_images(folder, [path for path, _ in found], options)
    return Dataset(dataset_name(folder), samples, labels, classes, 0.0, 255.0)


def images_by_class(folder: Path) -> list[tuple[Path, str]]:
    """Return each image and the name of its class.

    Raises:
        DatasetError: A class folder holds no image.
    """
    found: list[tuple[Path, str]] = []
    for class_folder in subfolders(folder):
        images = image_files(class_folder)
        if not images:
            raise DatasetError(f"{class_folder} holds no image", expected="images of one class", hint="fill it or remove it")
        found += [(path, class_folder.name) for path in images]
    return found


def are_splits(folders: list[Path]) -> bool:
    """Return whether folders are parts of one data set by their names, and not classes or domains."""
    return bool(folders) and all(folder.name.lower() in SPLITS for folder in folders) and not any(map(holds_images, folders))


def holds_images(folder: Path) -> bool:
    """Return whether at least one image lies in a folder."""
    return any(map(is_image, entries(folder)))


def _recognises(path: Path) -> bool:
    """Return whether a path is a folder of class folders."""
    if not path.is_dir():
        return False
    inside = subfolders(path)
    classes = [each for part in inside for each in subfolders(part)] if are_splits(inside) else inside
    return any(map(holds_images, classes))


IMAGES = SourceKind(
    name="images",
    accepts="a folder with one folder of images for each class",
    recognises=_recognises,
    load=load_image_folder,
    options=frozenset({"size", "mode"}),
)
