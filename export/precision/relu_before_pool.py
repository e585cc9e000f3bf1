"""ReLU in front of the max pooling that it follows: the largest of rectified numbers is the rectified largest, to the last bit.

A quantised convolution then ends in the ReLU, and pooling works on its 8-bit numbers instead of going back to 32 bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import onnx


def relu_before_pool(model: onnx.ModelProto, convolutions: Collection[str]) -> None:
    """Exchange the two nodes in place behind the convolutions with these names; nodes stand in topological order."""
    nodes = model.graph.node
    maker = {output: node for node in nodes for output in node.output}
    readers = Counter([name for node in nodes for name in node.input] + [output.name for output in model.graph.output])
    for relu in nodes:
        pool = maker.get(relu.input[0]) if relu.op_type == "Relu" else None
        if pool is None or pool.op_type != "MaxPool" or len(pool.output) != 1 or readers[pool.output[0]] != 1:
            continue
        before = maker.get(pool.input[0])
        if before is not None and before.name in convolutions:
            relu.attribute.extend(pool.attribute)
            pool.ClearField("attribute")
            pool.op_type, relu.op_type = "Relu", "MaxPool"
