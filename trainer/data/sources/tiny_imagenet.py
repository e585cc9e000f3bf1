"""Tiny-ImageNet as its archive unpacks: WordNet ids as class folders, validation images listed in a table.

The test images have no labels and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.sources.base import LoadOptions, SourceKind
from trainer.data.sources.files import read_lines, require_files
from trainer.data.sources.images import image_files, read_images


def load_tiny_imagenet(folder: Path, options: LoadOptions) -> Dataset:
    """Return training and validation images, (110000, 3, 64, 64) uint8.

    Raises:
        DatasetError: A list or an image is missing or damaged.
    """
    require_files(folder, ("wnids.txt", "words.txt", "val/val_annotations.txt"))
    ids = read_lines(folder / "wnids.txt")
    if len(set(ids)) != len(ids):
        raise DatasetError(f"{folder / 'wnids.txt'} names a class twice", expected="different ids", got=f"{len(ids)} lines")
    places = {wordnet_id: place for place, wordnet_id in enumerate(ids)}
    found = [*_training_images(folder, places), *_validation_images(folder / "val", places)]
    if not found:
        raise DatasetError(f"{folder} holds no images", expected="train/ID/images/*.JPEG", hint="unpack the archive again")
    samples = read_images(folder, [path for path, _ in found], options)
    labels = np.array([label for _, label in found], np.int64)  # (N,)
    return Dataset("tiny-imagenet", samples, labels, _class_names(folder / "words.txt", ids), 0.0, 255.0)


def _training_images(folder: Path, places: Mapping[str, int]) -> Iterator[tuple[Path, int]]:
    """Yield each training image and its label."""
    for wordnet_id, place in places.items():
        yield from ((path, place) for path in image_files(folder / "train" / wordnet_id / "images"))


def _validation_images(folder: Path, places: Mapping[str, int]) -> Iterator[tuple[Path, int]]:
    """Yield each validation image and its label: lines of file name, id and a box, separated by tabs."""
    table = folder / "val_annotations.txt"
    for number, line in enumerate(read_lines(table), start=1):
        name, wordnet_id, *_ = [*line.split("\t"), ""]
        if wordnet_id not in places or Path(name).name != name:
            raise DatasetError(f"{table}, line {number} is wrong", expected="file name and an id of wnids.txt", got=repr(line[:80]))
        yield folder / "images" / name, places[wordnet_id]


def _class_names(table: Path, ids: list[str]) -> tuple[str, ...]:
    """Return the first word for each id; where two share it, the id follows."""
    words = {wordnet_id: text.split(",")[0].strip() for wordnet_id, _, text in (line.partition("\t") for line in read_lines(table))}
    names = [words.get(wordnet_id) or wordnet_id for wordnet_id in ids]
    return tuple(name if names.count(name) == 1 else f"{name} ({wordnet_id})" for name, wordnet_id in zip(names, ids, strict=True))


TINY_IMAGENET = SourceKind(
    name="tiny-imagenet",
    accepts="the folder of Tiny-ImageNet with wnids.txt and words.txt",
    recognises=lambda path: (path / "wnids.txt").is_file(),
    load=load_tiny_imagenet,
    options=frozenset({"size", "mode"}),
)
