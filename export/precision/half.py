"""A graph with weights and arithmetic in float16, inputs and outputs as before: half the bytes, not faster on a CPU."""

from __future__ import annotations

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

from export.graphs import clean, load_model


def to_half(graph: bytes) -> bytes:
    """Return the graph in half precision, as single-file ONNX bytes.

    Args:
        graph: An exported graph in float32.
    """
    converted = convert_float_to_float16(load_model(graph), keep_io_types=True)
    model: onnx.ModelProto = converted
    return clean(model)
