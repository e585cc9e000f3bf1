"""What every kind of source is: a name, how to recognise it, how to load it, and which options it takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.data.dataset import Dataset


@dataclass(frozen=True)
class LoadOptions:
    """What may follow a source's path behind a question mark.

    Attributes:
        size: Width and height in pixels that images are brought to; None for the most common size.
        mode: ``L`` (grey) or ``RGB``; None for RGB when any image has colour.
        label: Name of a table's label column; None to find it.
    """

    size: tuple[int, int] | None = None
    mode: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class SourceKind:
    """One kind of file or folder.

    Attributes:
        name: Prefix that forces this kind (``cifar10:/data/x``).
        accepts: What it reads, in a few words for an error message.
        recognises: Whether a path looks like this kind, without reading what is in its files.
        load: The loader.
        options: Names of the options that it takes.
    """

    name: str
    accepts: str
    recognises: Callable[[Path], bool]
    load: Callable[[Path, LoadOptions], Dataset]
    options: frozenset[str] = frozenset()
