"""Reader of numeric arrays in MATLAB files of version 5; scipy's ends the whole process on some damaged files.

Layout: a header of 128 bytes, then elements. An element is a type, a size and so many bytes, padded to eight; up to four
bytes fit into the second half of a short form. An element may be packed with zlib. A matrix is made of elements: flags
with its class, its dimensions, its name, and its values, column by column.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from protocol.files import read_limited
from trainer.data.sources import memory
from trainer.data.sources.files import REFETCH

HEADER_BYTES = 128
LITTLE_ENDIAN_VERSION_5 = b"\x00\x01IM"
MATRIX, PACKED = 14, 15
STORED_DTYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
CLASS_DTYPES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
Element = tuple[int, memoryview]


def read_matlab_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the numeric arrays of a file by name; text, structures and cells are left out.

    Raises:
        DatasetError: It is no such file, damaged, or too large for memory.
    """
    data = read_limited(path.resolve(), memory.MEMORY_LIMIT, DatasetError)
    if data[HEADER_BYTES - 4 : HEADER_BYTES] != LITTLE_ENDIAN_VERSION_5:
        got = data[HEADER_BYTES - 4 : HEADER_BYTES].hex(" ") or "no header"
        raise DatasetError(f"{path} cannot be read", expected="a MATLAB file of version 5", got=got, hint=REFETCH)
    arrays: dict[str, NDArray[np.generic]] = {}
    try:
        for kind, content in _elements(memoryview(data)[HEADER_BYTES:]):
            for inner, matrix in _unpacked(content) if kind == PACKED else [(kind, content)]:
                if inner == MATRIX:
                    arrays.update(_matrix(matrix))
    except (ValueError, zlib.error) as fault:
        raise DatasetError(f"{path} is truncated or damaged", got=str(fault), hint=REFETCH) from fault
    return arrays


def _elements(data: memoryview) -> Iterator[Element]:
    """Yield type and content of each element.

    Raises:
        ValueError: The data ends inside one.
    """
    place = 0
    while place < len(data):
        kind, size = _word(data, place), _word(data, place + 4)
        start, length = place + 8, size
        if kind >> 16:  # the short form: size and type share the first word
            kind, length, start = kind & 0xFFFF, kind >> 16, place + 4
        if length > len(data) - start or (start == place + 4 and length > 4):
            raise ValueError(f"an element of {length} bytes where {len(data) - start} are left")
        yield kind, data[start : start + length]
        place = start + length if kind == PACKED else start + max(4, length) + -(start + max(4, length)) % 8


def _word(data: memoryview, place: int) -> int:
    """Return a 32-bit number."""
    if place + 4 > len(data):
        raise ValueError("the end is inside an element's header")
    return int.from_bytes(data[place : place + 4], "little")


def _unpacked(content: memoryview) -> Iterator[Element]:
    """Yield the elements packed in one, which together fit in memory."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(content, memory.MEMORY_LIMIT)
    if not unpacker.eof:
        raise ValueError("a packed element is incomplete or too large for memory")
    return _elements(memoryview(data))


def _matrix(content: memoryview) -> dict[str, NDArray[np.generic]]:
    """Return a matrix by its name, or nothing where it is not numeric."""
    parts = _elements(content)
    flags, dimensions, name = (next(parts, (0, content[:0])) for _ in range(3))
    dtype = CLASS_DTYPES.get(flags[1][0] if len(flags[1]) else 0)
    if dtype is None:
        return {}
    kind, values = next(parts, (0, content[:0]))
    shape = tuple(int(size) for size in np.frombuffer(dimensions[1], "<i4"))
    stored = np.dtype(STORED_DTYPES.get(kind, "u1"))
    if kind not in STORED_DTYPES or min(shape, default=-1) < 0 or math.prod(shape) * stored.itemsize != len(values):
        raise ValueError(f"{len(values)} bytes of type {kind} for shape {shape}")
    array = np.frombuffer(values, stored).reshape(shape, order="F")
    return {bytes(name[1]).decode("latin-1"): array.astype(dtype, copy=False)}
