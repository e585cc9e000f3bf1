"""Reading .npy and .npz files that anybody may have made: one error of ours for everything that can be wrong with them."""

from __future__ import annotations

import tokenize
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import FedtailorError, InputError
from protocol.files import require_plain_file

# What numpy raises for damaged, hostile or foreign content; it documents only some of it.
NUMPY_FAULTS = (
    OSError,
    ValueError,
    EOFError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RecursionError,
    SyntaxError,
    KeyError,
    tokenize.TokenError,
    zipfile.BadZipFile,
)


def read_array(path: Path, error: type[FedtailorError] = InputError) -> NDArray[np.generic]:
    """Return the array in an ``.npy`` file, mapped into memory where possible.

    Raises:
        FedtailorError: Of the class ``error``: no plain file, no such array, or one without any entry but with a huge shape.
    """
    require_plain_file(path, error)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except NUMPY_FAULTS as fault:
        raise error(f"{path} cannot be read", expected="an array saved with numpy.save", got=_first_line(fault)) from fault
    if not isinstance(array, np.ndarray):
        array.close()
        raise error(f"{path} holds no single array", expected="an array saved with numpy.save", got=type(array).__name__)
    if array.size == 0 and len(array.shape) > 1 and 0 in array.shape[1:]:
        raise error(f"{path} holds samples without entries", got=f"shape {array.shape}")
    return array


def read_arrays(path: Path, error: type[FedtailorError] = InputError) -> dict[str, NDArray[np.generic]]:
    """Return the arrays in an ``.npz`` file by name.

    Raises:
        FedtailorError: Of the class ``error``: no plain file, or anything in it that is no array.
    """
    require_plain_file(path, error)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except NUMPY_FAULTS as fault:
        raise error(f"{path} cannot be read", got=_first_line(fault), hint="save it with numpy.savez, without objects") from fault
    foreign = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
    if foreign:
        raise error(f"{path} holds something that is no array", got=foreign[0], hint="save it with numpy.savez")
    return arrays


def _first_line(fault: BaseException) -> str:
    """Return a fault as one short line."""
    text = str(fault).strip().splitlines()
    return f"{type(fault).__name__}: {text[0][:160]}" if text else type(fault).__name__
