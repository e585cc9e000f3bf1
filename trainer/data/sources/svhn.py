"""Street View House Numbers, cropped digits: MATLAB files of version 5 with ``X`` (32, 32, 3, N) and ``y`` (N, 1)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.sources.base import SourceKind
from trainer.data.sources.files import require_files
from trainer.data.sources.matlab_file import read_matlab_arrays

FILES = ("train_32x32.mat", "test_32x32.mat")
ZERO = 10  # the label of the digit 0


def load_svhn(path: Path) -> Dataset:
    """Return the digits as (N, 3, 32, 32) uint8: of one file, or of a folder's train and test files merged.

    Raises:
        DatasetError: A file is missing, truncated, not of SVHN, or too large for memory.
    """
    if path.is_dir():
        require_files(path, FILES)
    pairs = [_read(each) for each in ([path / name for name in FILES] if path.is_dir() else [path])]
    samples, labels = zip(*pairs, strict=True)
    return Dataset("svhn", np.concatenate(samples), np.concatenate(labels), tuple("0123456789"), 0.0, 255.0)


def _read(path: Path) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return images (N, 3, 32, 32) uint8 and labels (N,) of one file."""
    arrays = read_matlab_arrays(path)
    images, labels = (arrays.get(name, np.empty(0)) for name in ("X", "y"))
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.dtype != np.uint8 or images.size == 0:
        got = f"{images.shape} {images.dtype}" if "X" in arrays else f"only {sorted(arrays)}"
        raise DatasetError(f"{path} holds no images of SVHN", expected="X (32, 32, 3, N) uint8", got=got)
    if labels.shape not in {(images.shape[3], 1), (1, images.shape[3])}:
        raise DatasetError(f"{path} holds no fitting labels", expected=f"y ({images.shape[3]}, 1)", got=labels.shape)
    digits = labels.ravel()  # (N,)
    if not np.isin(digits, np.arange(1, ZERO + 1)).all():
        raise DatasetError(f"{path} has a label that is no digit", expected="1 to 10", got=f"{digits.min()} to {digits.max()}")
    return images.transpose(3, 2, 0, 1), digits.astype(np.int64) % ZERO  # (N, 3, 32, 32), (N,)


SVHN = SourceKind(
    name="svhn",
    accepts="a folder with SVHN's train_32x32.mat and test_32x32.mat, or one such file",
    recognises=lambda path: path.suffix == ".mat" or any((path / name).is_file() for name in FILES),
    load=lambda path, _: load_svhn(path),
)
