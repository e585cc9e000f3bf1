"""Where a graph and its module part: the first layer whose output differs, so that a failing export can be narrowed down.

The exporter names values after the operations of the program that torch traced. Running that program operation by operation,
and the graph with every inner value as an output, gives pairs to compare in the order of computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from edge_runtime.sessions import open_session
from export.flat_module import plain_torch
from export.graphs import load_model, trace_onnx, traceable
from trainer.methods.parts import Part

GUARDS = "_guards_fn"
NODE_PREFIX = "node_"
SELF_PREFIX, LAYER_PREFIX = "L['self'].", "computation."

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Divergence:
    """The first value that differs.

    Attributes:
        layer: Dotted name of the layer in the caller's module; empty for the module itself or a function.
        operation: torch's operation, as in ``aten.linear.default``.
        value: Name of the value in the graph.
        difference: Largest absolute difference; infinity where shapes differ or an entry is NaN.
    """

    layer: str
    operation: str
    value: str
    difference: float

    def sentence(self) -> str:
        """Return it in words."""
        where = f"layer {self.layer}" if self.layer else "the module itself"
        return f"outputs part first at {self.operation} of {where} (value {self.value}), by {self.difference:.3g}"


def first_divergence(part: Part, graph: bytes, feeds: Mapping[str, Array], absolute: float, relative: float) -> Divergence | None:
    """Return the first operation whose output in the graph is not what torch gives.

    Args:
        part: The original.
        graph: What was made of it; not necessarily by this exporter, but only values that carry its names are compared.
        feeds: All inputs, by name.
        absolute: Absolute tolerance.
        relative: Tolerance relative to torch's value.

    Raises:
        InputError: The part cannot be traced.
        BundleError: ONNX Runtime refuses the graph.
    """
    with plain_torch():
        ours = _torch_values(part, feeds)
    theirs = _graph_values(graph, feeds)
    for node, expected in ours:
        if node.name not in theirs:
            continue
        value, got = theirs[node.name]
        difference = _difference(got, expected)
        allowed = absolute + relative * np.abs(expected.astype(np.float64))
        if got.shape != expected.shape or not (difference <= allowed).all():
            finite = got.shape == expected.shape and np.isfinite(difference).all()
            return Divergence(_layer(node), str(node.target), value, float(difference.max()) if finite else float("inf"))
    return None


def _difference(got: Array, expected: Array) -> NDArray[np.float64]:
    """Return absolute differences, entry by entry, or one infinity where shapes differ."""
    if got.shape != expected.shape:
        return np.array(np.inf)
    difference: NDArray[np.float64] = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    return difference


class _Recorder(fx.Interpreter):
    """Runs a program and keeps what each operation gives."""

    def __init__(self, program: fx.GraphModule) -> None:
        super().__init__(program)
        self.values: list[tuple[fx.Node, Array]] = []

    def run_node(self, n: fx.Node) -> Any:
        """Run one operation and keep its result if it is a tensor."""
        result = super().run_node(n)
        if isinstance(result, Tensor) and n.op == "call_function":
            self.values.append((n, result.numpy()))
        return result


def _torch_values(part: Part, feeds: Mapping[str, Array]) -> list[tuple[fx.Node, Array]]:
    """Return the traced program's operations and what each gives, in order."""
    exported = trace_onnx(*traceable(part), part.entry_point).exported_program
    assert exported is not None, "the exporter traces with torch.export"  # noqa: S101  # an invariant, not a check of input
    program: Any = exported.module()
    for node in list(program.graph.nodes):
        if node.op == "call_module" and node.target == GUARDS:
            program.graph.erase_node(node)
    program.recompile()
    recorder = _Recorder(program)
    recorder.run(*(torch.from_numpy(feeds[tensor.name]) for tensor in part.inputs))
    return recorder.values


def _graph_values(graph: bytes, feeds: Mapping[str, Array]) -> dict[str, tuple[str, Array]]:
    """Return the graph's inner values by the name of the operation that they come from: name in the graph, and content."""
    model = load_model(graph)
    makers = {name: node for node in model.graph.node for name in node.output if name}
    model.graph.ClearField("output")
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in makers)
    outputs = open_session(model.SerializeToString(), "1.19").run(feeds)
    values: dict[str, tuple[str, Array]] = {}
    for (name, maker), content in zip(makers.items(), outputs, strict=True):
        values[name] = (name, content)
        values.setdefault(maker.name.removeprefix(NODE_PREFIX), (name, content))
    return values


def _layer(node: fx.Node) -> str:
    """Return the dotted name of the layer that an operation was traced in."""
    stack: Mapping[str, Any] = node.meta.get("nn_module_stack") or {}
    path = str(list(stack.values())[-1][0]) if stack else ""
    path = path.removeprefix(SELF_PREFIX)
    return path.removeprefix(LAYER_PREFIX) if path.startswith(LAYER_PREFIX) else ""
