"""EMNIST's peculiarities: images stored transposed, classes named by character codes, letters counted from one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.sources.files import read_lines

LETTERS = {place: chr(ord("A") + place - 1) for place in range(1, 27)}


def is_emnist(set_name: str) -> bool:
    """Return whether a set of IDX files is one of EMNIST's, which its name tells (``emnist-balanced``)."""
    return set_name.startswith("emnist-")


def emnist_dataset(folder: Path, set_name: str, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Dataset:
    """Return a set of EMNIST with upright images and characters as class names.

    Args:
        folder: Where ``<set_name>-mapping.txt`` lies, which names the classes; it may be missing.
        set_name: Such as ``emnist-balanced``.
        images: As stored, (N, 28, 28).
        labels: As stored, (N,).
    """
    names = _names_by_label(folder / f"{set_name}-mapping.txt", labels)
    known = np.array(sorted(names))  # (C,)
    places = np.searchsorted(known, labels).clip(max=len(known) - 1)  # (N,)
    if (known[places] != labels).any():
        wrong = int(labels[known[places] != labels][0])
        raise DatasetError(f"{folder}: a label of {set_name} is not in its mapping", expected=f"one of {len(known)} labels", got=wrong)
    upright = np.ascontiguousarray(images.swapaxes(1, 2))  # (N, 28, 28)
    return Dataset(set_name, upright, places.astype(np.int64), tuple(names[label] for label in known.tolist()), 0.0, 255.0)


def _names_by_label(mapping: Path, labels: NDArray[np.int64]) -> Mapping[int, str]:
    """Return the class names by label, from the mapping file where there is one."""
    if mapping.is_file():
        return dict(_read_mapping_line(mapping, line) for line in read_lines(mapping))
    if "letters" in mapping.name:
        return LETTERS
    return {label: str(label) for label in range(int(labels.max(initial=0)) + 1)}


def _read_mapping_line(mapping: Path, line: str) -> tuple[int, str]:
    """Return label and character of one line: a label and one or two character codes, of which the first counts."""
    try:
        label, code, *_ = (int(word) for word in line.split())
        return label, chr(code)
    except (ValueError, OverflowError) as error:
        raise DatasetError(f"{mapping} has a wrong line", expected="a label and a character code", got=repr(line[:80])) from error
