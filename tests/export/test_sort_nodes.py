"""Nodes come out in an order that the format allows, and cycles are not hidden."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from export.passes.sort_nodes import sort_nodes
from protocol.errors import ParityError


def model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in ("samples", "logits")]
    graph = helper.make_graph(list(nodes), "graph", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_nodes_stand_after_those_they_read_from() -> None:
    first, second = helper.make_node("Relu", ["samples"], ["half"]), helper.make_node("Neg", ["half"], ["logits"])
    unsorted = model(second, first)
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(unsorted)
    sort_nodes(unsorted)
    onnx.checker.check_model(unsorted)
    assert unsorted == model(first, second)


def test_a_sorted_graph_stays_as_it_is() -> None:
    nodes = helper.make_node("Relu", ["samples"], ["half"]), helper.make_node("Neg", ["half"], ["logits"])
    again = model(*nodes)
    sort_nodes(again)
    assert again == model(*nodes)


def test_a_cycle_is_refused() -> None:
    circle = model(helper.make_node("Add", ["samples", "logits"], ["half"]), helper.make_node("Neg", ["half"], ["logits"]))
    with pytest.raises(ParityError, match="broke its promise"):
        sort_nodes(circle)
