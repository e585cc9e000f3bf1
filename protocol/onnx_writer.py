"""Writing constants into an ONNX model's bytes, with numpy alone: inputs whose values are known become initialisers.

Only the graph's inputs and initialisers change; every other field is copied as it is. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from protocol.errors import UnsafeGraphError
from protocol.graph_values import VALUE_NAME
from protocol.onnx_graph import GRAPH_INITIALIZER, GRAPH_INPUT, MODEL_GRAPH
from protocol.protobuf import LENGTH_DELIMITED, VARINT, field_spans, first_text, message

TENSOR_SIZE, TENSOR_TYPE, TENSOR_NAME, TENSOR_RAW = 1, 2, 8, 9
FLOAT32 = 1


def with_constants(model: bytes, values: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return a model in which some inputs are constants.

    Args:
        model: An ONNX model that was checked.
        values: Input name -> its value, float32.

    Raises:
        UnsafeGraphError: The model is malformed, or has no input of such a name.
    """
    pieces: list[bytes | memoryview] = []
    found: set[str] = set()
    for number, value, span in field_spans(memoryview(model)):
        if number == MODEL_GRAPH and isinstance(value, memoryview):
            graph, named = _graph_with_constants(value, values)
            pieces.append(_bytes_field(MODEL_GRAPH, graph))
            found |= named
        else:
            pieces.append(span)
    if found != values.keys():
        raise UnsafeGraphError("a model lacks inputs that were to become constants", expected=sorted(values), got=sorted(found))
    return b"".join(pieces)


def _graph_with_constants(graph: memoryview, values: Mapping[str, NDArray[np.float32]]) -> tuple[bytes, set[str]]:
    """Return a graph's bytes with constants in place of inputs, and the names that were inputs."""
    pieces: list[bytes | memoryview] = []
    found: set[str] = set()
    for number, value, span in field_spans(graph):
        name = first_text(message(value), VALUE_NAME) if number == GRAPH_INPUT else None
        if name in values:
            found.add(str(name))
        else:
            pieces.append(span)
    pieces += [_bytes_field(GRAPH_INITIALIZER, _tensor(name, values[name])) for name in sorted(found)]
    return b"".join(pieces), found


def _tensor(name: str, value: NDArray[np.float32]) -> bytes:
    """Return a TensorProto."""
    sizes = b"".join(_integer_field(TENSOR_SIZE, size) for size in value.shape)
    named = _integer_field(TENSOR_TYPE, FLOAT32) + _bytes_field(TENSOR_NAME, name.encode())
    return sizes + named + _bytes_field(TENSOR_RAW, value.astype("<f4").tobytes())


def _integer_field(number: int, value: int) -> bytes:
    """Return one integer field."""
    return _varint(number << 3 | VARINT) + _varint(value)


def _bytes_field(number: int, value: bytes) -> bytes:
    """Return one field that spans bytes."""
    return _varint(number << 3 | LENGTH_DELIMITED) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Return an integer in protobuf's variable length."""
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    return bytes(content)
