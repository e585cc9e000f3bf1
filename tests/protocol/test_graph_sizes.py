"""Bounds of sizes against what ONNX Runtime really makes, on graphs put together at random, and bombs that each rule must stop."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from protocol import graph_sizes
from protocol.errors import UnsafeGraphError
from protocol.extents import MOST_ROWS, Outline
from protocol.graph_sizes import check_sizes
from protocol.onnx_graph import inspect_graph
from protocol.operators import ALLOWED_OPERATORS
from protocol.size_rules import RULES

REFUSED = ("Fail", "InvalidArgument", "InvalidGraph", "RuntimeException", "NotImplemented")
REFUSALS = (UnsafeGraphError, *(getattr(onnxruntime.capi.onnxruntime_pybind11_state, name) for name in REFUSED))
onnx = pytest.importorskip("onnx", reason="needs the package onnx")
INPUTS: dict[str, tuple[int | str, ...]] = {"x": ("n", 2, 3), "y": ("m", 3)}
ENDS = list(itertools.product((1, MOST_ROWS), repeat=2))  # of m and n, in the order of the names


def model_of(nodes: list[Any], constants: list[Any], inputs: dict[str, tuple[int | str, ...]], outputs: Sequence[str]) -> bytes:
    values = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()]
    graph = onnx.helper.make_graph(nodes, "g", values, [onnx.ValueInfoProto(name=name) for name in outputs], constants)
    made: bytes = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 18)]).SerializeToString()
    return made


class Draft:
    """A graph that grows by one node at a time, as long as ONNX Runtime runs it and its bounds allow it."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.floats, self.sizes = ["x", "y"], ["two"]
        self.constants.append(onnx.numpy_helper.from_array(np.array([2, 3], np.int64), "two"))

    def model(self, outputs: Sequence[str]) -> bytes:
        return model_of(self.nodes, self.constants, INPUTS, outputs)

    def integers(self, values: Sequence[int]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def pick(self, names: Sequence[str]) -> str:
        return self.data.draw(st.sampled_from(names))

    def number(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def grow(self) -> None:
        """Add a node; take it away again where it cannot run."""
        before = len(self.nodes), len(self.constants), list(self.floats), list(self.sizes)
        getattr(self, self.pick(["_float", "_float", "_size", "_sized"]))()
        try:
            run(self.model(self.made()), 3, 2)
            outlines(self.model([]))
        except REFUSALS:
            del self.nodes[before[0] :], self.constants[before[1] :]
            self.floats, self.sizes = before[2], before[3]

    def made(self) -> list[str]:
        return [name for node in self.nodes for name in node.output]

    def add(self, operator: str, inputs: list[str], into: list[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, inputs, [name], **attributes))
        into.append(name)
        return name

    def _float(self) -> None:
        first, second = self.pick(self.floats), self.pick(self.floats)
        operator = self.pick(["Add", "Mul", "MatMul", "Transpose", "Flatten", "Concat", "Unsqueeze", "Squeeze", "ReduceSum", "Gather"])
        operator = self.pick([operator, "Slice", "Softmax", "Pad", "Relu"])
        axis = self.number(-2, 2)
        if operator in ("Add", "Mul", "MatMul"):
            self.add(operator, [first, second], self.floats)
        elif operator in ("Flatten", "Softmax"):
            self.add(operator, [first], self.floats, axis=axis)
        elif operator == "Concat":
            self.add(operator, [first, second], self.floats, axis=axis)
        elif operator in ("Unsqueeze", "Squeeze"):
            self.add(operator, [first, self.integers([axis])], self.floats)
        elif operator == "ReduceSum":
            self.add(operator, [first, self.integers([axis])], self.floats, keepdims=self.number(0, 1))
        elif operator == "Gather":
            self.add(operator, [first, self.integers([0] * self.number(1, 5))], self.floats, axis=axis)
        elif operator == "Slice":
            start, end, step = self.number(-4, 4), self.number(-4, 70), self.pick_step()
            inputs = [first, *(self.integers([value]) for value in (start, end, axis, step))]
            self.add(operator, inputs, self.floats)
        elif operator == "Pad":
            self.add(operator, [first, self.integers([self.number(-1, 3), self.number(0, 3)]), "", self.integers([axis])], self.floats)
        else:
            self.add(operator, [first], self.floats)

    def pick_step(self) -> int:
        return self.data.draw(st.sampled_from([1, 1, 2, -1]))

    def _size(self) -> None:
        first, second = self.pick(self.sizes), self.pick(self.sizes)
        second = self.data.draw(st.sampled_from([second, self.integers([self.number(-4, 4)])]))
        operator = self.pick(["Shape", "Add", "Sub", "Mul", "Div", "Max", "Min", "Concat", "Gather", "Where", "Slice", "Cast", "Neg"])
        if operator == "Shape":
            self.add(operator, [self.pick(self.floats)], self.sizes)
        elif operator == "Concat":
            self.add(operator, [first, second], self.sizes, axis=0)
        elif operator == "Gather":
            self.add(operator, [first, self.integers([self.number(-2, 2)])], self.sizes)
        elif operator == "Where":
            test = self.add("Equal", [first, second], [])
            self.add(operator, [test, first, second], self.sizes)
        elif operator == "Slice":
            inputs = [first, *(self.integers([value]) for value in (self.number(-3, 3), self.number(-3, 4), 0, self.pick_step()))]
            self.add(operator, inputs, self.sizes)
        elif operator == "Cast":
            half = self.add(operator, [first], [], to=6)
            self.add(operator, [half], self.sizes, to=7)
        elif operator == "Neg":
            self.add(operator, [first], self.sizes)
        else:
            self.add(operator, [first, second], self.sizes)

    def _sized(self) -> None:
        first, size = self.pick(self.floats), self.pick(self.sizes)
        if self.number(0, 1):
            self.add("Expand", [first, size], self.floats)
            return
        wild = self.integers([self.number(-1, 0)])
        whole = self.add("Concat", self.data.draw(st.permutations([size, wild])), [], axis=0)
        self.add("Reshape", [first, whole], self.floats)


def run(model: bytes, m: int, n: int) -> list[np.ndarray]:
    """Return what ONNX Runtime makes of so many rows."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.ones((n, 2, 3), np.float32), "y": np.ones((m, 3), np.float32)}
    wanted = {each.name for each in session.get_inputs()}
    found: list[np.ndarray] = session.run(None, {name: value for name, value in feeds.items() if name in wanted})
    return found


def outlines(model: bytes) -> dict[str, Outline]:
    facts = inspect_graph(model)
    return check_sizes(facts.nodes, INPUTS, facts.constants, facts.constant_shapes)


def test_no_real_size_is_above_its_bound() -> None:
    compared: Counter[str] = Counter()

    @settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(st.data())
    def check(data: st.DataObject) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(graph_sizes, "MOST_ELEMENTS", 2**10)
            patched.setattr(graph_sizes, "MOST_ELEMENTS_OF_ROWS", 2**17)
            draft = Draft(data)
            for _ in range(10):
                draft.grow()
            made = draft.made()
            found = outlines(draft.model([])) if made else {}
        for place, (m, n) in enumerate(ENDS if made else []):
            try:
                real = run(draft.model(made), m, n)
            except REFUSALS:  # these rows do not fit each other
                continue
            compared.update(node.op_type for node in draft.nodes)
            for name, tensor in zip(made, real, strict=True):
                compare(found[name], tensor, place, draft)

    check()
    assert len(compared) > 18, compared  # kinds of operators


@pytest.mark.parametrize("step", [1, 2, -1, -2])
def test_every_slice_is_as_long_as_the_runtime_makes_it(step: int) -> None:
    cases = list(itertools.product(range(-5, 6), range(-5, 6)))
    numbers = {"three": [7, 8, 9], "axis": [0], "step": [step]} | {f"n{each}": [each] for each in range(-5, 6)}
    constants = [onnx.numpy_helper.from_array(np.array(values, np.int64), name) for name, values in numbers.items()]
    nodes = [
        onnx.helper.make_node("Slice", ["three", f"n{start}", f"n{end}", "axis", "step"], [f"t{place}"])
        for place, (start, end) in enumerate(cases)
    ]
    made = [node.output[0] for node in nodes]

    found = outlines(model_of(nodes, constants, {}, []))
    for case, name, real in zip(cases, made, run(model_of(nodes, constants, {}, made), 1, 1), strict=True):
        assert [value.fixed for value in found[name].values or ()] == real.tolist(), case
        assert [size.fixed for size in found[name].dims] == [len(real)], case


@pytest.mark.parametrize("tail", [-1, 3])
def test_a_size_that_turns_out_as_nothing_copies_an_axis(tail: int) -> None:
    nodes = [
        onnx.helper.make_node("Sub", ["two", "two"], ["nothing"]),
        onnx.helper.make_node("Concat", ["nothing", "tail"], ["shape"], axis=0),
        onnx.helper.make_node("Reshape", ["x", "shape"], ["out"]),
    ]
    constants = [onnx.numpy_helper.from_array(np.array(each, np.int64), name) for name, each in (("two", [2, 3]), ("tail", [tail]))]

    found, inputs = outlines(model_of(nodes, constants, INPUTS, []))["out"], {"x": INPUTS["x"]}
    for place, (m, n) in enumerate(ENDS):
        for extent, real in zip(found.dims, run(model_of(nodes, constants, inputs, ["out"]), m, n)[0].shape, strict=True):
            assert real <= extent.at[place]


def compare(outline: Outline, tensor: np.ndarray, place: int, draft: Draft) -> None:
    """Check one tensor at one number of rows."""
    assert tensor.ndim == len(outline.dims), draft.nodes
    pairs = list(zip(outline.dims, tensor.shape, strict=True))
    if outline.values is not None:
        pairs += list(zip(outline.values, np.atleast_1d(tensor).tolist(), strict=True))
    for extent, value in pairs:
        assert abs(value) <= abs(extent.at[place]), (draft.nodes, extent, value)
        assert not extent.exact or value == extent.at[place], (draft.nodes, extent, value)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_windows_are_counted_as_the_runtime_does(data: st.DataObject) -> None:
    def draw(low: int, high: int) -> int:
        return data.draw(st.integers(low, high))

    operator = data.draw(st.sampled_from(["Conv", "ConvTranspose", "MaxPool", "AveragePool"]))
    kernel, stride, size = [draw(1, 3), draw(1, 3)], [draw(1, 3), draw(1, 3)], [draw(5, 9), draw(5, 9)]
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride, "pads": [draw(0, each - 1) for each in kernel * 2]}
    constants = []
    if operator.startswith("Conv"):
        attributes["dilations"] = [draw(1, 2), draw(1, 2)]
        constants = [onnx.numpy_helper.from_array(np.ones((4, 4, *kernel), np.float32), "w")]
        if operator == "ConvTranspose":
            attributes["output_padding"] = [draw(0, each - 1) for each in stride]
    else:
        attributes["ceil_mode"] = draw(0, 1)
    node = onnx.helper.make_node(operator, ["x", *(each.name for each in constants)], ["out"], **attributes)
    shape: list[int | str] = ["n", 4, *size]
    values = [onnx.helper.make_tensor_value_info("x", 1, shape)], [onnx.helper.make_tensor_value_info("out", 1, None)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", *values, constants), ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 18)]
    ).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    real = session.run(None, {"x": np.ones((1, 4, *size), np.float32)})[0].shape
    facts = inspect_graph(model)
    bound = [extent.at[0] for extent in check_sizes(facts.nodes, {"x": shape}, facts.constants, facts.constant_shapes)["out"].dims]
    assert all(have <= most <= have + attributes.get("ceil_mode", 0) for have, most in zip(real, bound, strict=True)), (real, bound)


def test_every_allowed_operator_has_a_rule() -> None:
    assert RULES.keys() == ALLOWED_OPERATORS
