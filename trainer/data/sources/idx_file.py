"""Reader of IDX files, plain or gzipped: the format of MNIST and its relatives.

Layout: two zero bytes, a type byte, the number of axes, one big-endian 32-bit size an axis, then the values.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from protocol.files import require_plain_file
from trainer.data.sources.files import REFETCH
from trainer.data.sources.memory import check_fits

UNSIGNED_BYTE = 0x08
MAXIMUM_AXES = 4
PIECE = 2**24


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes.

    Raises:
        DatasetError: The file is missing, truncated, too long, or not such a file; it names the file.
    """
    require_plain_file(path, DatasetError)
    packed = path.suffix == ".gz"
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            stream = cast("BinaryIO", file)
            shape = _read_shape(path, stream)
            if not packed:
                _check_length(path, shape, path.stat().st_size - stream.tell())
            check_fits(path, math.prod(shape), REFETCH)
            values = _read_up_to(stream, math.prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} cannot be read", got=str(error), hint=REFETCH) from error
    _check_length(path, shape, len(values))
    return np.frombuffer(values, np.uint8).reshape(shape)


def _read_shape(path: Path, stream: BinaryIO) -> tuple[int, ...]:
    """Return the shape in a file's header."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != UNSIGNED_BYTE or not 1 <= magic[3] <= MAXIMUM_AXES:
        raise DatasetError(f"{path} is not an IDX file of bytes", expected="magic 00 00 08 and 1 to 4 axes", got=magic.hex(" "))
    header = stream.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        expected, got = f"at least {4 + 4 * magic[3]} bytes", f"{4 + len(header)} bytes"
        raise DatasetError(f"{path} ends inside its header", expected=expected, got=got, hint=REFETCH)
    return tuple(int(size) for size in np.frombuffer(header, ">u4"))


def _read_up_to(stream: BinaryIO, count: int) -> bytearray:
    """Return as many bytes as there are, at most ``count``, without reserving space for more than were found."""
    found = bytearray()
    while len(found) < count and (piece := stream.read(min(PIECE, count - len(found)))):
        found += piece
    return found


def _check_length(path: Path, shape: tuple[int, ...], length: int) -> None:
    """Refuse a number of values that the shape does not have."""
    count = math.prod(shape)
    if length != count:
        got = f"{length}" if length < count else "more"
        raise DatasetError(f"{path} is truncated or too long", expected=f"{count} values for shape {shape}", got=got, hint=REFETCH)
