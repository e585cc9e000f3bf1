"""CIFAR-10 and CIFAR-100 in their binary version; the Python version is pickled and is refused.

A record is one label byte (CIFAR-100: coarse, then fine) and 3,072 bytes of pixels, red, green and blue plane, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from protocol.files import read_limited
from trainer.data.dataset import Dataset
from trainer.data.sources.base import SourceKind
from trainer.data.sources.files import REFETCH, read_lines, require_files
from trainer.data.sources.memory import MEMORY_LIMIT

SHAPE = (3, 32, 32)
PIXELS = 3072


@dataclass(frozen=True)
class Layout:
    """What tells the two apart.

    Attributes:
        name: Name of the data set.
        files: Files of records.
        names: File of class names, one a line.
        label_bytes: Bytes before the pixels; the last of them is the label.
        pickled: Files of the Python version.
    """

    name: str
    files: tuple[str, ...]
    names: str
    label_bytes: int
    pickled: tuple[str, ...]

    def recognises(self, folder: Path) -> bool:
        """Return whether a folder holds this data set, in whichever version."""
        binary = (folder / self.names).is_file() or all((folder / name).is_file() for name in self.files)
        return binary or self.is_pickled(folder)

    def is_pickled(self, folder: Path) -> bool:
        """Return whether a folder holds the Python version."""
        return all((folder / name).is_file() for name in self.pickled)

    def load(self, folder: Path) -> Dataset:
        """Return all images (N, 3, 32, 32) uint8, train and test merged.

        Raises:
            DatasetError: A file is missing or truncated, or this is the Python version.
        """
        if self.is_pickled(folder):
            hint = f'use the binary version ("{self.name} binary version (suitable for C programs)")'
            raise DatasetError(f"{folder} holds pickled files, which could run code", expected=", ".join(self.files), hint=hint)
        require_files(folder, (*self.files, self.names))
        pairs = [self._read(folder / name) for name in self.files]
        samples, labels = zip(*pairs, strict=True)
        return Dataset(self.name, np.concatenate(samples), np.concatenate(labels), tuple(read_lines(folder / self.names)), 0.0, 255.0)

    def _read(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return images (N, 3, 32, 32) and labels (N,) of one file."""
        length = self.label_bytes + PIXELS
        data = read_limited(path.resolve(), MEMORY_LIMIT // len(self.files), DatasetError)
        if not data or len(data) % length:
            expected = f"a multiple of {length} bytes"
            raise DatasetError(f"{path} is truncated or not of {self.name}", expected=expected, got=f"{len(data)} bytes", hint=REFETCH)
        records = np.frombuffer(data, np.uint8).reshape(-1, length)  # (N, label bytes + 3072)
        labels = records[:, self.label_bytes - 1].astype(np.int64)  # (N,)
        return records[:, self.label_bytes :].reshape(-1, *SHAPE), labels


LAYOUT_10 = Layout(
    name="cifar10",
    files=(*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"),
    names="batches.meta.txt",
    label_bytes=1,
    pickled=("data_batch_1", "batches.meta"),
)
LAYOUT_100 = Layout(
    name="cifar100", files=("train.bin", "test.bin"), names="fine_label_names.txt", label_bytes=2, pickled=("train", "test", "meta")
)
CIFAR10 = SourceKind(
    name="cifar10",
    accepts="a folder with CIFAR-10's data_batch_1.bin to data_batch_5.bin and test_batch.bin",
    recognises=LAYOUT_10.recognises,
    load=lambda path, _: LAYOUT_10.load(path),
)
CIFAR100 = SourceKind(
    name="cifar100",
    accepts="a folder with CIFAR-100's train.bin and test.bin",
    recognises=LAYOUT_100.recognises,
    load=lambda path, _: LAYOUT_100.load(path),
)
