"""The constants of an ONNX graph as numpy arrays, read with nothing but the bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.onnx_tensor import DTYPES, TensorFacts, read_tensor
from protocol.protobuf import fields, message

MODEL_GRAPH, GRAPH_INITIALIZER = 7, 5


def read_initializers(model: bytes) -> dict[str, NDArray[np.generic]]:
    """Return the constants of a checked model by name; those that are written as lists of floats are left out."""
    graph = next(message(value) for number, value in fields(memoryview(model)) if number == MODEL_GRAPH)
    tensors = (read_tensor(message(value)) for number, value in fields(graph) if number == GRAPH_INITIALIZER)
    return {tensor.name: _array(tensor) for tensor in tensors if not tensor.values}


def _array(tensor: TensorFacts) -> NDArray[np.generic]:
    """Return the values, of the written shape."""
    dtype = np.dtype(DTYPES[tensor.data_type])
    if tensor.raw is None:
        return np.array(tensor.integers, dtype).reshape(tensor.dims)
    return np.frombuffer(tensor.raw, dtype.newbyteorder("<")).astype(dtype).reshape(tensor.dims)
