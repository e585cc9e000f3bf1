"""Multiply a scale into the weights behind it, instead of into every sample: normalisation then costs nothing.

Requires nodes in topological order; the result is the same but for rounding. A product with one constant number is gone where
only reshaping lies between it and a convolution (whose padding of zeros a scale leaves alone) or a matrix product, with constant
weights that nothing else reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

RESHAPING = ("Unsqueeze", "Squeeze", "Reshape", "Flatten")
WEIGHTED = ("Conv", "Gemm", "MatMul")


def fold_scale(model: onnx.ModelProto) -> None:
    """Fold in place."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    readers = Counter([name for node in graph.node for name in node.input] + [output.name for output in graph.output])
    for product in [node for node in graph.node if node.op_type == "Mul"]:
        scale = next((name for name in product.input if name in constants and _is_number(constants[name])), None)
        weight = constants.get(_weight_behind(graph, product.output[0], readers))
        if scale is None or scale == product.input[0] == product.input[1] or weight is None:
            continue
        scaled = numpy_helper.to_array(weight) * numpy_helper.to_array(constants[scale]).reshape(())
        weight.CopyFrom(numpy_helper.from_array(scaled.astype(np.float32), weight.name))
        unscaled = product.input[1] if product.input[0] == scale else product.input[0]
        for node in graph.node:
            for place, name in enumerate(node.input):
                if name == product.output[0]:
                    node.input[place] = unscaled
        graph.node.remove(product)
        if readers[scale] == 1:
            graph.initializer.remove(constants[scale])


def _is_number(tensor: onnx.TensorProto) -> bool:
    """Tell whether a constant is one float32 that adds no axes to what it multiplies."""
    return tensor.data_type == onnx.TensorProto.FLOAT and list(tensor.dims) in ([], [1])


def _weight_behind(graph: onnx.GraphProto, name: str, readers: Mapping[str, int]) -> str:
    """Return the weight of the node that reads a value, reshaped or not, or nothing; neither may have another reader."""
    while readers[name] == 1:
        node = next((node for node in graph.node if node.input and node.input[0] == name), None)
        if node is None:
            return ""
        if node.op_type in WEIGHTED:
            return node.input[1] if readers[node.input[1]] == 1 else ""
        if node.op_type not in RESHAPING:
            return ""
        name = node.output[0]
    return ""
