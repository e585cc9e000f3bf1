"""A small walker over the bytes of an ONNX model, with the standard library alone.

It reads just enough to judge a graph before ONNX Runtime sees it: versions, operators, external data, subgraphs,
functions, names of inputs and outputs. Anything it cannot follow is refused. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from protocol.errors import UnsafeGraphError
from protocol.manifest import GraphSpec
from protocol.onnx_tensor import TensorFacts, read_tensor
from protocol.operators import ALLOWED_OPERATORS
from protocol.protobuf import fields, first_text, integer, integers, message, text

MAXIMUM_NODES = 100_000

# ModelProto, GraphProto, NodeProto, AttributeProto, TensorProto, ValueInfoProto, OperatorSetIdProto
MODEL_IR, MODEL_GRAPH, MODEL_OPSET, MODEL_TRAINING, MODEL_FUNCTION = 1, 7, 8, 20, 25
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_SPARSE = 1, 5, 11, 12, 15
NODE_OPERATOR, NODE_ATTRIBUTE, NODE_DOMAIN = 4, 5, 7
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS, ATTRIBUTE_SPARSE, ATTRIBUTE_SPARSES = 5, 6, 10, 11, 22, 23
TENSOR_EXTERNAL, TENSOR_LOCATION = 13, 14
TENSOR_NAME = 8
VALUE_NAME = 1
NODE_INPUT, ATTRIBUTE_INTEGER, ATTRIBUTE_INTEGERS, INT64_TYPE = 1, 3, 8, 7

# Operators whose second input is a size: the most that a constant there may ask for, in elements (padding: in rows of an axis).
SIZED_BY = {"Expand": 2**26, "Reshape": 2**28, "Pad": 2**16}
LONGEST_SHAPE = 64
LARGEST_ATTRIBUTE = 2**16  # strides, paddings, axes, groups
OPSET_DOMAIN, OPSET_VERSION = 1, 2
DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass
class GraphFacts:
    """What was found in a model."""

    ir_version: int = 0
    opsets: dict[str, int] = field(default_factory=dict)
    operators: set[str] = field(default_factory=set)
    foreign_domains: set[str] = field(default_factory=set)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    initialisers: set[str] = field(default_factory=set)
    nodes: int = 0
    external_data: bool = False
    subgraphs: bool = False
    functions: bool = False
    sparse_tensors: bool = False
    training: bool = False
    shapes: dict[str, list[int]] = field(default_factory=dict)
    sized: list[tuple[str, str]] = field(default_factory=list)
    largest_attribute: int = 0

    def optional_inputs(self) -> list[str]:
        """Return the inputs that have a default, sorted: ONNX Runtime lets a caller leave them out."""
        return sorted(self.initialisers.intersection(self.inputs))


def inspect_graph(data: bytes) -> GraphFacts:
    """Return the facts of an ONNX model.

    Raises:
        UnsafeGraphError: The bytes are not a well-formed model.
    """
    facts = GraphFacts()
    graphs = 0
    for number, value in fields(memoryview(data)):
        if number == MODEL_IR:
            facts.ir_version = integer(value)
        elif number == MODEL_OPSET:
            _read_opset(message(value), facts)
        elif number == MODEL_GRAPH:
            graphs += 1
            _read_graph(message(value), facts)
        elif number == MODEL_FUNCTION:
            facts.functions = True
        elif number == MODEL_TRAINING:
            facts.training = True
    if graphs != 1:  # a repeated field would be merged by one reader and replaced by another
        raise UnsafeGraphError("a model must hold exactly one graph", got=str(graphs))
    return facts


def check_graph(data: bytes, spec: GraphSpec) -> None:
    """Refuse a graph that could do more than arithmetic, or that is not what the manifest says.

    Raises:
        UnsafeGraphError: With the first thing that is wrong.
    """
    facts = inspect_graph(data)
    dangers = {
        "external data": facts.external_data,
        "subgraphs": facts.subgraphs,
        "functions of its own": facts.functions,
        "sparse tensors": facts.sparse_tensors,
        "training information": facts.training,
    }
    for name, found in dangers.items():
        if found:
            raise UnsafeGraphError(f"{spec.file} holds {name}", expected="one plain graph")
    foreign = facts.foreign_domains | {domain for domain in facts.opsets if domain not in DEFAULT_DOMAINS}
    off_list = sorted(facts.operators - ALLOWED_OPERATORS)
    if foreign or off_list:
        raise UnsafeGraphError(f"{spec.file} uses operators off the allow-list", got=", ".join([*off_list, *sorted(foreign)]))
    _refuse_bombs(facts, spec)
    _compare_with_spec(facts, spec)


def _refuse_bombs(facts: GraphFacts, spec: GraphSpec) -> None:
    """Refuse constants that would make a small graph ask for any amount of memory."""
    if facts.largest_attribute > LARGEST_ATTRIBUTE:
        raise UnsafeGraphError(f"{spec.file} has a huge attribute", expected=f"at most {LARGEST_ATTRIBUTE}", got=facts.largest_attribute)
    for operator, name in facts.sized:
        sizes = [abs(size) for size in facts.shapes.get(name, ())]
        asked = math.prod(max(size, 1) for size in sizes) if operator != "Pad" else sum(sizes)
        if asked > SIZED_BY[operator]:
            raise UnsafeGraphError(f"{spec.file}: {operator} asks for too much", expected=f"at most {SIZED_BY[operator]}", got=asked)


def _compare_with_spec(facts: GraphFacts, spec: GraphSpec) -> None:
    """Refuse a graph whose facts differ from the manifest."""
    opset = max((version for domain, version in facts.opsets.items() if domain in DEFAULT_DOMAINS), default=0)
    pairs: Mapping[str, tuple[object, object]] = {
        "opset": (spec.opset, opset),
        "IR version": (spec.ir_version, facts.ir_version),
        "operators": (sorted(spec.operators), sorted(facts.operators)),
        "inputs": ([each.name for each in spec.inputs], facts.inputs),
        "optional inputs": (sorted(each.name for each in spec.inputs if each.optional), facts.optional_inputs()),
        "outputs": ([each.name for each in spec.outputs], facts.outputs),
    }
    for name, (expected, got) in pairs.items():
        if expected != got:
            raise UnsafeGraphError(f"{spec.file}: {name} differ from the manifest", expected=expected, got=got)


def _read_opset(data: memoryview, facts: GraphFacts) -> None:
    """Note one operator set."""
    domain, version = "", 0
    for number, value in fields(data):
        if number == OPSET_DOMAIN:
            domain = text(value)
        elif number == OPSET_VERSION:
            version = integer(value)
    facts.opsets[domain] = version


def _read_graph(data: memoryview, facts: GraphFacts) -> None:
    """Note nodes, initialisers, inputs and outputs."""
    for number, value in fields(data):
        if number == GRAPH_NODE:
            facts.nodes += 1
            if facts.nodes > MAXIMUM_NODES:
                raise UnsafeGraphError("a graph has too many nodes", expected=f"at most {MAXIMUM_NODES}")
            _read_node(message(value), facts)
        elif number == GRAPH_INITIALIZER:
            tensor = _read_tensor(message(value), facts)
            if tensor is not None and tensor.data_type == INT64_TYPE and tensor.name:
                facts.shapes[tensor.name] = tensor.sizes() if math.prod(tensor.dims) <= LONGEST_SHAPE else []
            facts.initialisers.add(first_text(message(value), TENSOR_NAME))
        elif number == GRAPH_SPARSE:
            facts.sparse_tensors = True
        elif number in (GRAPH_INPUT, GRAPH_OUTPUT):
            names = facts.inputs if number == GRAPH_INPUT else facts.outputs
            names.append(first_text(message(value), VALUE_NAME))


def _read_node(data: memoryview, facts: GraphFacts) -> None:
    """Note a node's operator, domain, what its attributes hide, and which input says a size."""
    inputs = [text(value) for number, value in fields(data) if number == NODE_INPUT]
    for number, value in fields(data):
        if number == NODE_OPERATOR:
            facts.operators.add(text(value))
            if text(value) in SIZED_BY and len(inputs) > 1:
                facts.sized.append((text(value), inputs[1]))
        elif number == NODE_DOMAIN and text(value) not in DEFAULT_DOMAINS:
            facts.foreign_domains.add(text(value))
        elif number == NODE_ATTRIBUTE:
            _read_attribute(message(value), facts)


def _read_attribute(data: memoryview, facts: GraphFacts) -> None:
    """Note tensors and graphs inside an attribute."""
    for number, value in fields(data):
        if number in (ATTRIBUTE_TENSOR, ATTRIBUTE_TENSORS):
            _read_tensor(message(value), facts)
        elif number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            facts.subgraphs = True
        elif number in (ATTRIBUTE_SPARSE, ATTRIBUTE_SPARSES):
            facts.sparse_tensors = True
        elif number in (ATTRIBUTE_INTEGER, ATTRIBUTE_INTEGERS):
            facts.largest_attribute = max([facts.largest_attribute, *map(abs, integers(value))])


def _read_tensor(data: memoryview, facts: GraphFacts) -> TensorFacts | None:
    """Note whether a tensor's data lie in another file, and return what it says if they do not."""
    if any(number == TENSOR_EXTERNAL or (number == TENSOR_LOCATION and value != 0) for number, value in fields(data)):
        facts.external_data = True
        return None
    return read_tensor(data)
