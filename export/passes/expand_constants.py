"""Write tensors that hold one value everywhere as an expanded scalar.

Requires: nothing.
Ensures: no ConstantOfShape, which devices refuse: a few bytes of it ask for any amount of memory.
"""

from __future__ import annotations

import onnx
from onnx import numpy_helper


def expand_constants(model: onnx.ModelProto) -> None:
    """Replace each ConstantOfShape by a constant and an Expand, in place."""
    nodes = list(model.graph.node)
    if not any(node.op_type == "ConstantOfShape" for node in nodes):
        return
    del model.graph.node[:]
    for node in nodes:
        if node.op_type != "ConstantOfShape":
            model.graph.node.append(node)
            continue
        name = f"{node.output[0]}_value"
        model.graph.initializer.append(_scalar(node, name))
        model.graph.node.append(onnx.helper.make_node("Expand", [name, node.input[0]], list(node.output), name=node.name))


def _scalar(node: onnx.NodeProto, name: str) -> onnx.TensorProto:
    """Return the node's value, float32 zero where it states none, as an initialiser of shape (1,)."""
    given = [numpy_helper.to_array(attribute.t) for attribute in node.attribute if attribute.name == "value"]
    return numpy_helper.from_array(given[0], name) if given else onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, [1], [0.0])
