"""Strict reader and writer of the safetensors format for numpy.

Layout: 8 bytes little-endian header length, JSON header {name: {dtype, shape, data_offsets}}, raw little-endian data.
Stricter than the format: duplicate names, gaps, empty tensors, trailing bytes and, unless asked otherwise, numbers that
are not finite or absurdly large are refused, sizes and shapes before any tensor is allocated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import FedtailorError, MalformedMessageError
from protocol.schema import SchemaError, decode, parse_json

Array = NDArray[np.generic]
DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),  # numpy has no such dtype: read as the upper half of a float32
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
PREFIX_BYTES = 8


@dataclass(frozen=True)
class TensorLimits:
    """What a reader accepts.

    Attributes:
        header_bytes: Largest header.
        tensors: Largest number of tensors.
        magnitude: Largest absolute value of a floating entry; None allows anything, NaN and infinity too.
    """

    header_bytes: int = 256 * 1024
    tensors: int = 4096
    magnitude: float | None = 1e6


@dataclass(frozen=True)
class _Entry:
    """One tensor of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, ...]


def encode_tensors(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the tensors as safetensors bytes, the same for the same content whatever the order of the mapping.

    Raises:
        MalformedMessageError: A dtype that the format or this reader does not know, or an empty tensor.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    pieces, position = [], 0
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")  # unlike ascontiguousarray, keeps a tensor without axes
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        if little.dtype not in NAMES or little.size == 0:
            kinds = ", ".join(NAMES.values())
            raise MalformedMessageError(
                f"tensor {name!r} cannot be written", expected=f"entries of {kinds}", got=f"{array.dtype} {array.shape}"
            )
        piece = little.tobytes()
        header[name] = {"dtype": NAMES[little.dtype], "shape": list(array.shape), "data_offsets": [position, position + len(piece)]}
        pieces.append(piece)
        position += len(piece)
    head = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    head += b" " * (-len(head) % 8)  # the format asks for aligned data
    return len(head).to_bytes(PREFIX_BYTES, "little") + head + b"".join(pieces)


def decode_tensors(
    data: bytes, limits: TensorLimits | None = None, error: type[FedtailorError] = MalformedMessageError
) -> dict[str, Array]:
    """Return the tensors in safetensors bytes; BF16 comes back as float32.

    Args:
        data: The whole content.
        limits: What is accepted; the defaults when None.
        error: Class of the error to raise.

    Raises:
        FedtailorError: Of the class ``error``, with the first thing that is wrong.
    """
    limits = limits or TensorLimits()
    try:
        entries, body = _read_header(data, limits)
        return {name: _read_tensor(name, entry, body, limits) for name, entry in entries.items()}
    except SchemaError as fault:
        raise error(f"tensors are malformed at {fault.where}", expected=fault.expected, got=fault.got) from fault


def _read_header(data: bytes, limits: TensorLimits) -> tuple[dict[str, _Entry], memoryview]:
    """Return the checked header and the raw data, which the entries cover without gap or overlap."""
    length = int.from_bytes(data[:PREFIX_BYTES], "little") if len(data) >= PREFIX_BYTES else -1
    if not 2 <= length <= min(limits.header_bytes, len(data) - PREFIX_BYTES):
        bound = min(limits.header_bytes, len(data))
        raise SchemaError("header", f"a length from 2 to {bound} bytes", str(length))
    header = parse_json(data[PREFIX_BYTES : PREFIX_BYTES + length])
    if not isinstance(header, dict) or len(header) > limits.tensors:
        raise SchemaError("header", f"an object of at most {limits.tensors} tensors", type(header).__name__)
    _check_metadata(header.pop("__metadata__", {}))
    entries = {name: decode(_Entry, value, name) for name, value in header.items()}
    body = memoryview(data)[PREFIX_BYTES + length :]
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        position = _check_entry(name, entry, position)
    if position != len(body):
        raise SchemaError("data", f"{position} bytes", f"{len(body)} bytes")
    return entries, body


def _check_metadata(metadata: object) -> None:
    """Refuse metadata that is not text to text."""
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SchemaError("__metadata__", "an object of texts", type(metadata).__name__)


def _check_entry(name: str, entry: _Entry, position: int) -> int:
    """Return where the next tensor must begin."""
    if entry.dtype not in DTYPES:
        raise SchemaError(f"{name}.dtype", " or ".join(DTYPES), repr(entry.dtype))
    if len(entry.shape) > 8 or any(size < 1 for size in entry.shape):
        raise SchemaError(f"{name}.shape", "at most 8 positive sizes", str(entry.shape)[:60])
    end = position + math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
    if entry.data_offsets != (position, end):
        raise SchemaError(f"{name}.data_offsets", f"[{position}, {end}]", str(list(entry.data_offsets))[:60])
    return end


def _read_tensor(name: str, entry: _Entry, body: memoryview, limits: TensorLimits) -> Array:
    """Return one tensor, copied out of the data and checked."""
    start, end = entry.data_offsets
    stored: np.dtype[Any] = DTYPES[entry.dtype]
    array: Array = np.frombuffer(body[start:end], stored).reshape(entry.shape).copy()
    if entry.dtype == "BOOL" and array.view(np.uint8).max(initial=0) > 1:
        raise SchemaError(name, "bytes 0 or 1", "another byte")
    if entry.dtype == "BF16":
        array = (array.astype("<u4") << 16).view("<f4")
    if limits.magnitude is not None and np.issubdtype(array.dtype, np.floating):
        # The type of the limit must be wide enough: as a float16 it would itself be infinity. NaN compares false.
        with np.errstate(invalid="ignore"):
            if not (np.abs(array) <= np.float64(limits.magnitude)).all():
                raise SchemaError(name, f"finite numbers up to {limits.magnitude:g}", "NaN, infinity or larger")
    return array
