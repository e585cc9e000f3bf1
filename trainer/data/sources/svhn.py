"""Street View House Numbers, cropped digits: MATLAB files of version 5 with ``X`` (32, 32, 3, N) and ``y`` (N, 1)."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from protocol.files import require_plain_file
from trainer.data.dataset import Dataset
from trainer.data.sources.base import SourceKind
from trainer.data.sources.files import REFETCH, require_files
from trainer.data.sources.memory import check_fits
from trainer.data.sources.optional import import_optional

FILES = ("train_32x32.mat", "test_32x32.mat")
ZERO = 10  # the label of the digit 0
# What scipy raises for damaged or foreign files; it documents only some of it.
MATLAB_FAULTS = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    NotImplementedError,
    MemoryError,
    OverflowError,
    zlib.error,
)


def load_svhn(path: Path) -> Dataset:
    """Return the digits as (N, 3, 32, 32) uint8: of one file, or of a folder's train and test files merged.

    Raises:
        DatasetError: A file is missing, truncated, or not of SVHN.
        MissingExtraError: scipy is not installed.
    """
    if path.is_dir():
        require_files(path, FILES)
    pairs = [_read(each) for each in ([path / name for name in FILES] if path.is_dir() else [path])]
    samples, labels = zip(*pairs, strict=True)
    return Dataset("svhn", np.concatenate(samples), np.concatenate(labels), tuple("0123456789"), 0.0, 255.0)


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images (N, 3, 32, 32) and labels (N,) of one file."""
    require_plain_file(path, DatasetError)
    matlab: Any = import_optional("scipy.io", "reading SVHN", "train")
    try:
        listed = {name: (shape, kind) for name, shape, kind in matlab.whosmat(path)}
        _check(path, listed)
        found = matlab.loadmat(path, variable_names=("X", "y"))
    except MATLAB_FAULTS as fault:
        got = f"{type(fault).__name__}: {str(fault)[:160]}"
        raise DatasetError(f"{path} cannot be read", expected="a MATLAB file of version 5", got=got, hint=REFETCH) from fault
    labels = found["y"].ravel().astype(np.int64)  # (N,)
    if labels.min() < 1 or labels.max() > ZERO:
        raise DatasetError(f"{path} has a label that is no digit", expected="1 to 10", got=f"{labels.min()} to {labels.max()}")
    return np.ascontiguousarray(found["X"].transpose(3, 2, 0, 1)), labels % ZERO  # (N, 3, 32, 32)


def _check(path: Path, listed: dict[str, tuple[tuple[int, ...], str]]) -> None:
    """Refuse a file whose list of variables is not SVHN's, before any is read."""
    shape, kind = listed.get("X", ((), "absent"))
    count = shape[3] if len(shape) == 4 else 0
    if shape[:3] != (32, 32, 3) or count == 0 or kind != "uint8":
        raise DatasetError(f"{path} holds no images of SVHN", expected="X (32, 32, 3, N) uint8", got=f"{shape} {kind}")
    shape, kind = listed.get("y", ((), "absent"))
    if sorted(shape) != sorted((count, 1)) or kind not in ("uint8", "double", "single"):
        raise DatasetError(f"{path} holds no fitting labels", expected=f"y ({count}, 1) numbers", got=f"{shape} {kind}")
    check_fits(path, count * 3072, "use train_32x32.mat and test_32x32.mat alone")


SVHN = SourceKind(
    name="svhn",
    accepts="a folder with SVHN's train_32x32.mat and test_32x32.mat, or one such file",
    recognises=lambda path: path.suffix == ".mat" or any((path / name).is_file() for name in FILES),
    load=lambda path, _: load_svhn(path),
)
