"""Just enough of the protobuf wire format to walk through an ONNX file, with the standard library alone.

Anything that two readers could understand in two ways is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.errors import UnsafeGraphError

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
LARGEST_FIELD_NUMBER = 2**29 - 1
LARGEST_INT64 = 2**63


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield each field's number and value: an integer, or the bytes it spans."""
    return ((number, value) for number, value, _ in field_spans(data))


def field_spans(data: memoryview) -> Iterator[tuple[int, int | memoryview, memoryview]]:
    """Yield each field's number, its value (an integer, or the bytes it spans), and all of its bytes, the tag included.

    Raises:
        UnsafeGraphError: The bytes are malformed.
    """
    position = 0
    while position < len(data):
        start = position
        tag, position = varint(data, position)
        number, kind = tag >> 3, tag & 7
        if not 0 < number <= LARGEST_FIELD_NUMBER:  # other readers would cut it to 32 bits and see another field
            raise UnsafeGraphError("a model's bytes are malformed", got=f"field number {number}")
        if kind == VARINT:
            value, position = varint(data, position)
            yield number, value, data[start:position]
            continue
        if kind == LENGTH_DELIMITED:
            size, position = varint(data, position)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise UnsafeGraphError("a model's bytes are malformed", got=f"wire type {kind}")
        if size > len(data) - position:
            raise UnsafeGraphError("a model is truncated", expected=f"{size} bytes", got=f"{len(data) - position}")
        position += size
        yield number, data[position - size : position], data[start:position]


def varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return an integer of up to 64 bits and where the next thing begins."""
    result = 0
    for place in range(10):
        if position + place >= len(data):
            raise UnsafeGraphError("a model is truncated", expected="the rest of a number")
        byte = data[position + place]
        result |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return result, position + place + 1
    raise UnsafeGraphError("a model's bytes are malformed", got="a number over 64 bits")


def integer(value: int | memoryview) -> int:
    """Return an integer field."""
    if isinstance(value, int):
        return value
    raise UnsafeGraphError("a model's bytes are malformed", expected="an integer", got="bytes")


def message(value: int | memoryview) -> memoryview:
    """Return a field that spans bytes."""
    if isinstance(value, memoryview):
        return value
    raise UnsafeGraphError("a model's bytes are malformed", expected="bytes", got="an integer")


def text(value: int | memoryview) -> str:
    """Return a text field."""
    try:
        return bytes(message(value)).decode()
    except UnicodeDecodeError as error:
        raise UnsafeGraphError("a model's bytes are malformed", expected="UTF-8 text") from error


def first_text(data: memoryview, wanted: int) -> str:
    """Return the text in one field of a message, or nothing."""
    return next((text(value) for number, value in fields(data) if number == wanted), "")


def integers(value: int | memoryview) -> list[int]:
    """Return a repeated integer field, packed or single, as signed 64-bit numbers."""
    if isinstance(value, int):
        return [signed(value)]
    found, position = [], 0
    while position < len(value):
        number, position = varint(value, position)
        found.append(signed(number))
    return found


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as the signed one that has its bits."""
    return number - 2 * LARGEST_INT64 if number >= LARGEST_INT64 else number
