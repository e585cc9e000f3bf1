"""Names of data sets and the order of classes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def dataset_name(path: Path) -> str:
    """Return a short name for a file or folder."""
    return path.resolve().stem if path.is_file() else path.resolve().name


def ordered_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return different names, whole numbers in numeric order and everything else in alphabetical order."""
    different = set(names)
    try:
        return tuple(sorted(different, key=lambda name: (int(name), name)))
    except ValueError:
        return tuple(sorted(different))
