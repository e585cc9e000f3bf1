"""Each pass on a small model made by hand."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from export.passes.add_zero_defaults import add_zero_defaults, optional_inputs
from export.passes.base import Condition, GraphPass
from export.passes.drop_shape_hints import drop_shape_hints
from export.passes.lower_ir import lower_ir
from export.passes.name_tensors import has_single_makers, name_tensors
from export.passes.strip_metadata import strip_metadata
from protocol.errors import IncompatibleVersionError, InputError, ParityError


@pytest.fixture
def model() -> onnx.ModelProto:
    """Return ``y = relu(x + w)`` with notes wherever a note can be."""
    nodes = [helper.make_node("Add", ["x", "w"], ["sum"], doc_string="/home/me/a.py"), helper.make_node("Relu", ["sum"], ["y"])]
    nodes.append(helper.make_node("Transpose", ["y"], ["z"], perm=[1, 0]))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2], doc_string="note") for name in "xz")
    graph = helper.make_graph(nodes, "main_graph", [x], [y], [helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])])
    graph.value_info.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, ["batch", 2]))
    made: onnx.ModelProto = helper.make_model(graph, producer_name="me", ir_version=10, opset_imports=[helper.make_opsetid("", 18)])
    made.doc_string = made.producer_version = made.domain = "secret"
    made.model_version = 7
    graph = made.graph
    graph.initializer[0].doc_string = graph.node[2].attribute[0].doc_string = "secret"
    for holder in (made, graph, graph.node[0], graph.input[0], graph.output[0], graph.initializer[0], graph.value_info[0]):
        holder.metadata_props.add(key="secret", value="/home/me")
    return made


def test_no_note_survives(model: onnx.ModelProto) -> None:
    strip_metadata(model)
    content = model.SerializeToString()
    assert not any(word in content for word in (b"secret", b"/home", b"note", b"me\x12", b"main_graph"))
    assert [node.op_type for node in model.graph.node] == ["Add", "Relu", "Transpose"]
    assert list(model.graph.node[2].attribute[0].ints) == [1, 0]
    onnx.checker.check_model(model, full_check=True)


def test_inner_shapes_go_and_outer_ones_stay(model: onnx.ModelProto) -> None:
    drop_shape_hints(model)
    assert len(model.graph.value_info) == 0
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_the_ir_version_is_lowered_after_stripping_only(model: onnx.ModelProto) -> None:
    with pytest.raises(IncompatibleVersionError, match="strip metadata"):
        lower_ir(model)
    strip_metadata(model)
    lower_ir(model)
    assert model.ir_version == 8
    onnx.checker.check_model(model, full_check=True)


def test_a_newer_tensor_type_is_refused(model: onnx.ModelProto) -> None:
    strip_metadata(model)
    model.graph.initializer[0].data_type = TensorProto.FLOAT8E4M3FN
    with pytest.raises(IncompatibleVersionError):
        lower_ir(model)


def test_a_pass_is_checked_before_and_after(model: onnx.ModelProto) -> None:
    named = Condition("a graph named done", lambda each: each.graph.name == "done", "call it done")
    with pytest.raises(InputError, match="the pass p cannot be applied: expected a graph named done; call it done"):
        GraphPass("p", lambda _: None, requires=(named,), error=InputError)(model)
    with pytest.raises(ParityError, match="the pass p broke its promise"):
        GraphPass("p", lambda _: None, ensures=(named,))(model)
    GraphPass("p", lambda each: setattr(each.graph, "name", "done"), ensures=(named,))(model)


@pytest.mark.parametrize(("inputs", "outputs"), [(["samples"], ["logits"]), (["sum"], ["w"]), (["y"], ["x"]), (["z"], ["sum.1"])])
def test_names_that_inner_values_have_are_free(model: onnx.ModelProto, inputs: list[str], outputs: list[str]) -> None:
    strip_metadata(model)
    drop_shape_hints(model)
    name_tensors(inputs, outputs)(model)
    assert ([each.name for each in model.graph.input], [each.name for each in model.graph.output]) == (inputs, outputs)
    assert [node.op_type for node in model.graph.node] == ["Add", "Relu", "Transpose"]
    lower_ir(model)
    onnx.checker.check_model(model, full_check=True)
    assert has_single_makers(model)


@pytest.mark.parametrize(("inputs", "outputs"), [(["a", "b"], ["y"]), (["a"], []), (["a"], ["a"])])
def test_names_must_fit(model: onnx.ModelProto, inputs: list[str], outputs: list[str]) -> None:
    with pytest.raises(ParityError, match="cannot be applied"):
        name_tensors(inputs, outputs)(model)


def test_a_name_twice_is_seen(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "sum"
    assert not has_single_makers(model)


def test_defaults_are_empty_and_only_where_asked(model: onnx.ModelProto) -> None:
    assert optional_inputs(model) == set()
    add_zero_defaults(["x"])(model)
    assert optional_inputs(model) == {"x"}
    assert [list(tensor.dims) for tensor in model.graph.initializer if tensor.name == "x"] == [[0, 2]]
    with pytest.raises(ParityError, match="no default yet"):
        add_zero_defaults(["x"])(model)


@pytest.mark.parametrize("name", ["w", "z", "nothing"])
def test_only_an_input_with_a_named_axis_gets_a_default(model: onnx.ModelProto, name: str) -> None:
    with pytest.raises(ParityError, match="named axis"):
        add_zero_defaults([name])(model)
