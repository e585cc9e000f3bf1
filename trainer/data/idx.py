"""Reader of IDX files, plain or gzipped: the format of MNIST and its relatives.

Layout: two zero bytes, a type byte, the number of axes, one big-endian 32-bit size an axis, then the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError

UNSIGNED_BYTE = 0x08
MAXIMUM_AXES = 4


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes.

    Raises:
        DatasetError: The file is missing, truncated, too long, or not such a file; it names the file.
    """
    data = _read_bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UNSIGNED_BYTE or not 1 <= data[3] <= MAXIMUM_AXES:
        raise DatasetError(f"{path} is not an IDX file of bytes", expected="magic 00 00 08 and 1 to 4 axes", got=data[:4].hex(" "))
    axes = data[3]
    start = 4 + 4 * axes
    if len(data) < start:
        raise DatasetError(f"{path} ends inside its header", expected=f"at least {start} bytes", got=f"{len(data)} bytes")
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", count=axes, offset=4))
    if len(data) - start != math.prod(shape):
        raise DatasetError(
            f"{path} is truncated or too long",
            expected=f"{math.prod(shape)} values for shape {shape}",
            got=f"{len(data) - start}",
            hint="fetch the file again",
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _read_bytes(path: Path) -> bytes:
    """Return the file's content, unpacked when its name ends with .gz."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} cannot be read", got=str(error), hint="fetch the file again") from error
