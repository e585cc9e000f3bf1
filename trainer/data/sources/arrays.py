"""A data set from arrays that somebody else made: from an ``.npz`` file or a function."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset

MAXIMUM_CLASSES = 10_000
RAW_DTYPES = (np.uint8, np.float32)


def dataset_from_arrays(name: str, where: object, arrays: dict[str, NDArray[np.generic]]) -> Dataset:
    """Return a data set from arrays by name.

    Args:
        name: Name of the data set.
        where: File or function, for messages.
        arrays: ``samples`` (N, ...) uint8 or float32 and ``labels`` (N,) integers; ``classes`` (C,), ``domains`` (N,)
            integers and ``domain_names`` (D,) may be missing.

    Raises:
        DatasetError: An array is missing or of the wrong form.
    """
    missing = {"samples", "labels"} - arrays.keys()
    if missing:
        raise DatasetError(f"{where} lacks arrays", expected="samples and labels", got=f"only {sorted(arrays)}")
    samples, labels = arrays["samples"], _indices(where, "labels", arrays["labels"])
    check_raw_dtype(where, samples)
    if samples.ndim < 2 or 0 in samples.shape or len(samples) != len(labels):
        raise DatasetError(f"{where}: samples have the wrong shape", expected=f"({len(labels)}, at least one more axis)", got=samples.shape)
    domains = _indices(where, "domains", arrays["domains"]) if "domains" in arrays else None
    low, top = (0.0, 255.0) if samples.dtype == np.uint8 else (float(samples.min(initial=0.0)), float(samples.max(initial=1.0)))
    classes = _names(arrays.get("classes"), labels)
    domain_names = () if domains is None else _names(arrays.get("domain_names"), domains)
    return Dataset(name, samples, labels, classes, low, top, domains, domain_names)


def check_raw_dtype(where: object, samples: NDArray[np.generic]) -> None:
    """Refuse samples of a dtype that no bundle can state.

    Raises:
        DatasetError: They are neither uint8 nor float32.
    """
    if samples.dtype not in RAW_DTYPES:
        hint = 'convert them, for example with samples.astype("float32")'
        raise DatasetError(f"{where}: samples have the wrong dtype", expected="uint8 or float32", got=str(samples.dtype), hint=hint)


def _indices(where: object, what: str, array: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return class or domain indices (N,) as int64."""
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise DatasetError(f"{where}: {what} have the wrong form", expected="(N,) integers", got=f"{array.shape} {array.dtype}")
    return array.astype(np.int64)


def _names(given: NDArray[np.generic] | None, indices: NDArray[np.int64]) -> tuple[str, ...]:
    """Return the given names, or the numbers up to the largest index."""
    count = min(int(indices.max(initial=0)), MAXIMUM_CLASSES) + 1
    return tuple(map(str, range(count))) if given is None else tuple(map(str, given.ravel()))
