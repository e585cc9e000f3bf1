"""Where samples come from: an array, a file, a folder, or anything that can be iterated over; read a bounded number at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_runtime.samples import IMAGE_SUFFIXES, SampleGate, read_image
from protocol.arguments import as_path
from protocol.arrays import read_array, read_arrays
from protocol.errors import InputError
from protocol.manifest import RawInput

Array = NDArray[np.generic]
Source: TypeAlias = "Array | str | Path | Iterable[Array]"

ROWS_AT_A_TIME = 256  # bounds the memory of a call
ARRAY_SUFFIXES = frozenset({".npy", ".npz"})
ARCHIVE_MEMBER = "samples"


class NamedBatch(NamedTuple):
    """Samples (B, *shape) of the raw dtype, B from 1 to 256, and a name for each."""

    names: list[str]
    samples: Array


def batches(source: Source, raw: RawInput) -> Iterator[NamedBatch]:
    """Yield checked samples, at most 256 at a time.

    Args:
        source: An array (N, *shape); a path: an image, an ``.npy`` or ``.npz`` file, or a folder of those; or an iterable of
            samples (*shape) or of arrays (N, *shape).
        raw: What the bundle expects.

    Raises:
        InputError: Nothing there to read, or samples that do not fit; see ``SampleGate.accept``.
        MissingExtraError: Images need Pillow.
    """
    gate = SampleGate(raw)
    if isinstance(source, np.ndarray):
        return _slices(source, gate)
    if isinstance(source, str | Path):
        return grouped(_from_path(as_path(source, "where samples lie"), gate))
    try:
        items = iter(source)
    except TypeError as error:
        expected = "an array, a path, or an iterable of arrays"
        raise InputError("there are no samples in this", expected=expected, got=type(source).__name__) from error
    return grouped(_numbered(items, gate))


def _slices(samples: Array, gate: SampleGate) -> Iterator[NamedBatch]:
    """Yield an array in pieces; all of it is checked first unless it may be larger than memory."""
    if not isinstance(samples, np.memmap) or samples.ndim == 0 or len(samples) == 0:
        samples = gate.accept(samples)
    for start in range(0, len(samples), ROWS_AT_A_TIME):
        piece = gate.accept(samples[start : start + ROWS_AT_A_TIME])
        yield NamedBatch([str(start + place) for place in range(len(piece))], piece)


def _numbered(items: Iterable[Array], gate: SampleGate) -> Iterator[NamedBatch]:
    """Yield what an iterable gives, each item a sample or an array of samples."""
    count = 0
    for item in items:
        rows = gate.accept(as_batch(item, gate))
        yield NamedBatch([str(count + place) for place in range(len(rows))], rows)
        count += len(rows)


def as_batch(item: Array, gate: SampleGate) -> Array:
    """Return a single sample (*shape) as an array (1, *shape), anything else as it is."""
    return item[None] if getattr(item, "shape", None) == gate.shape else item


def _from_path(path: Path, gate: SampleGate) -> Iterator[NamedBatch]:
    """Yield what lies at a path."""
    if path.is_dir():
        paths = sorted(each for each in path.iterdir() if each.suffix.lower() in IMAGE_SUFFIXES | ARRAY_SUFFIXES)
        for each in paths:
            yield from _from_file(each, gate, f"{each.name}:")
    elif path.suffix.lower() in IMAGE_SUFFIXES | ARRAY_SUFFIXES and path.is_file():
        yield from _from_file(path, gate, "")
    else:
        raise InputError("no samples found", expected="an .npy or .npz file, an image, or a folder of these", got=str(path))


def _from_file(path: Path, gate: SampleGate, prefix: str) -> Iterator[NamedBatch]:
    """Yield the samples of one file; those of an array are named by their place, after a prefix."""
    if path.suffix.lower() in IMAGE_SUFFIXES:
        yield NamedBatch([path.name], gate.accept(read_image(path, gate.raw)[None]))
        return
    samples = as_batch(_read_archive(path) if path.suffix.lower() == ".npz" else read_array(path), gate)
    for names, piece in _slices(samples, gate):
        yield NamedBatch([prefix + name for name in names], piece)


def _read_archive(path: Path) -> Array:
    """Return the samples of an ``.npz`` file: its only array, or the one called ``samples``."""
    arrays = read_arrays(path)
    if ARCHIVE_MEMBER not in arrays and len(arrays) != 1:
        expected = f"one array, or one called {ARCHIVE_MEMBER}"
        raise InputError(f"{path} does not say where its samples are", expected=expected, got=", ".join(arrays) or "nothing")
    return arrays.get(ARCHIVE_MEMBER, next(iter(arrays.values())))


def grouped(batch_stream: Iterator[NamedBatch]) -> Iterator[NamedBatch]:
    """Yield the same samples in batches of 256, the last one aside."""
    pairs = (pair for names, samples in batch_stream for pair in zip(names, samples, strict=True))
    while chunk := list(islice(pairs, ROWS_AT_A_TIME)):
        names, rows = zip(*chunk, strict=True)
        yield NamedBatch(list(names), np.stack(rows))
