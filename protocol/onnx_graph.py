"""A small walker over the bytes of an ONNX model, with the standard library alone.

It reads just enough to judge a graph before ONNX Runtime sees it: versions, operators, external data, subgraphs,
functions, names of inputs and outputs. Anything it cannot follow is refused. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from protocol.errors import UnsafeGraphError
from protocol.graph_order import NodeFacts, check_order
from protocol.graph_sizes import check_sizes
from protocol.graph_values import ValueFacts, compare_value, read_value
from protocol.manifest import GraphSpec
from protocol.onnx_tensor import TensorFacts, read_tensor
from protocol.operators import ALLOWED_OPERATORS
from protocol.protobuf import fields, integer, integers, message, text

MAXIMUM_NODES = 100_000

MAXIMUM_NAME = 512

# ModelProto, GraphProto, NodeProto, AttributeProto, TensorProto, OperatorSetIdProto
MODEL_IR, MODEL_GRAPH, MODEL_OPSET, MODEL_METADATA, MODEL_TRAINING, MODEL_FUNCTION = 1, 7, 8, 14, 20, 25
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_SPARSE, GRAPH_METADATA = 1, 5, 11, 12, 15, 16
NODE_INPUT, NODE_OUTPUT, NODE_OPERATOR, NODE_ATTRIBUTE, NODE_DOMAIN, NODE_METADATA = 1, 2, 4, 5, 7, 9
ATTRIBUTE_NAME, ATTRIBUTE_INTEGER, ATTRIBUTE_TEXT, ATTRIBUTE_FLOATS, ATTRIBUTE_INTEGERS = 1, 3, 4, 7, 8
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS, ATTRIBUTE_SPARSE, ATTRIBUTE_SPARSES = 5, 6, 10, 11, 22, 23
TENSOR_EXTERNAL, TENSOR_LOCATION = 13, 14
OPSET_DOMAIN, OPSET_VERSION = 1, 2
INTEGER_TYPES = (6, 7)

LONGEST_SHAPE = 64
LONGEST_WORD = 256
LARGEST_ATTRIBUTE = 2**16  # axes, groups, sizes of parts
WINDOWS = ("pads", "strides", "dilations", "kernel_shape", "output_padding", "output_shape")
LARGEST_WINDOW = 2**12  # padding by more asks for gigabytes in two axes
DEFAULT_DOMAINS = ("", "ai.onnx")


@dataclass
class GraphFacts:
    """What was found in a model."""

    ir_version: int = 0
    opsets: dict[str, int] = field(default_factory=dict)
    operators: set[str] = field(default_factory=set)
    foreign_domains: set[str] = field(default_factory=set)
    input_values: list[ValueFacts] = field(default_factory=list)
    output_values: list[ValueFacts] = field(default_factory=list)
    nodes: list[NodeFacts] = field(default_factory=list)
    initialisers: list[str] = field(default_factory=list)
    constants: dict[str, list[int]] = field(default_factory=dict)
    constant_shapes: dict[str, list[int]] = field(default_factory=dict)
    external_data: bool = False
    subgraphs: bool = False
    functions: bool = False
    sparse_tensors: bool = False
    training: bool = False
    metadata: bool = False
    largest_attribute: int = 0
    largest_window: int = 0

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs."""
        return [each.name for each in self.input_values]

    @property
    def outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return [each.name for each in self.output_values]

    def optional_inputs(self) -> list[str]:
        """Return the inputs that have a default, sorted: ONNX Runtime lets a caller leave them out."""
        return sorted(set(self.initialisers).intersection(self.inputs))


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
        elif number == MODEL_METADATA:
            facts.metadata = True
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
        "metadata": facts.metadata,  # a runtime may take settings of sessions from it
    }
    for name, found in dangers.items():
        if found:
            raise UnsafeGraphError(f"{spec.file} holds {name}", expected="one plain graph")
    foreign = facts.foreign_domains | {domain for domain in facts.opsets if domain not in DEFAULT_DOMAINS}
    off_list = sorted(facts.operators - ALLOWED_OPERATORS)
    if foreign or off_list:
        raise UnsafeGraphError(f"{spec.file} uses operators off the allow-list", got=", ".join([*off_list, *sorted(foreign)]))
    if facts.largest_attribute > LARGEST_ATTRIBUTE or facts.largest_window > LARGEST_WINDOW:
        expected = f"at most {LARGEST_ATTRIBUTE}, {LARGEST_WINDOW} for windows and padding"
        got = max(facts.largest_attribute, facts.largest_window)
        raise UnsafeGraphError(f"{spec.file} has a huge attribute", expected=expected, got=got)
    _compare_with_spec(facts, spec)
    check_order(facts.nodes, facts.inputs, facts.initialisers, facts.outputs)
    check_sizes(facts.nodes, {each.name: each.shape for each in spec.inputs}, facts.constants, facts.constant_shapes)


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
    for value, stated in zip([*facts.input_values, *facts.output_values], [*spec.inputs, *spec.outputs], strict=True):
        compare_value(spec.file, value, stated)


def _read_opset(data: memoryview, facts: GraphFacts) -> None:
    """Note one operator set."""
    domain, version = "", 0
    for number, value in fields(data):
        if number == OPSET_DOMAIN:
            domain = text(value)
        elif number == OPSET_VERSION:
            version = integer(value)
    if domain in facts.opsets or (domain in DEFAULT_DOMAINS and facts.opsets.keys() & set(DEFAULT_DOMAINS)):
        raise UnsafeGraphError("a model names one domain's operator set twice", got=domain or "ai.onnx")
    facts.opsets[domain] = version


def _read_graph(data: memoryview, facts: GraphFacts) -> None:
    """Note nodes, initialisers, inputs and outputs."""
    for number, value in fields(data):
        if number == GRAPH_NODE:
            if len(facts.nodes) == MAXIMUM_NODES:
                raise UnsafeGraphError("a graph has too many nodes", expected=f"at most {MAXIMUM_NODES}")
            facts.nodes.append(_read_node(message(value), facts))
        elif number == GRAPH_INITIALIZER:
            tensor = _read_tensor(message(value), facts)
            if tensor is not None:
                facts.initialisers.append(tensor.name)
                facts.constant_shapes[tensor.name] = tensor.dims
                if (sizes := _short_integers(tensor)) is not None:
                    facts.constants[tensor.name] = sizes
        elif number == GRAPH_SPARSE:
            facts.sparse_tensors = True
        elif number == GRAPH_METADATA:
            facts.metadata = True
        elif number in (GRAPH_INPUT, GRAPH_OUTPUT):
            (facts.input_values if number == GRAPH_INPUT else facts.output_values).append(read_value(message(value)))


def _short_integers(tensor: TensorFacts) -> list[int] | None:
    """Return the values of a tensor that may be a size, or None."""
    possible = tensor.data_type in INTEGER_TYPES and math.prod(tensor.dims) <= LONGEST_SHAPE
    return tensor.sizes() if possible else None


def _read_node(data: memoryview, facts: GraphFacts) -> NodeFacts:
    """Return a node, and note its operator, its domain and what its attributes hide."""
    names: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: [], NODE_OPERATOR: [], NODE_DOMAIN: []}
    read: list[Attribute] = []
    for number, value in fields(data):
        if number in names:
            names[number].append(text(value))
        elif number == NODE_METADATA:
            facts.metadata = True
        elif number == NODE_ATTRIBUTE:
            read.append(_read_attribute(message(value), facts))
    facts.operators.update(names[NODE_OPERATOR])
    facts.foreign_domains.update(domain for domain in names[NODE_DOMAIN] if domain not in DEFAULT_DOMAINS)
    if len(names[NODE_OPERATOR]) != 1:
        raise UnsafeGraphError("a node must have one operator", got=", ".join(names[NODE_OPERATOR]) or "none")
    if any(len(name) > MAXIMUM_NAME for name in (*names[NODE_INPUT], *names[NODE_OUTPUT])):
        raise UnsafeGraphError("a name in a graph is too long", expected=f"at most {MAXIMUM_NAME} characters")
    if len({each.name for each in read}) != len(read):
        raise UnsafeGraphError("an attribute is given twice", got=", ".join(each.name for each in read)[:100])
    node = NodeFacts(names[NODE_OPERATOR][0], tuple(names[NODE_INPUT]), tuple(names[NODE_OUTPUT]))
    values = [each for each in read if each.name.startswith("value")]
    if node.operator == "Constant" and len(values) == 1:
        node = replace(node, constant=values[0].values, constant_shape=values[0].shape)
    return replace(
        node,
        attributes={each.name: each.numbers for each in read if each.numbers},
        words={each.name: each.word for each in read if each.word is not None},
    )


@dataclass(frozen=True)
class Attribute:
    """What an attribute holds: integers, a text, or as a constant its sizes and, if short integers, its values."""

    name: str
    numbers: tuple[int, ...]
    word: str | None
    values: tuple[int, ...] | None
    shape: tuple[int, ...]


def _read_attribute(data: memoryview, facts: GraphFacts) -> Attribute:
    """Note tensors, graphs and numbers inside an attribute, and return what sizes may follow from."""
    numbers: list[int] = []
    name, word, found, shape, floats = "", None, None, None, 0
    for number, value in fields(data):
        if number == ATTRIBUTE_NAME:
            name = text(value)
        elif number in (ATTRIBUTE_TENSOR, ATTRIBUTE_TENSORS):
            tensor = _read_tensor(message(value), facts)
            found = _short_integers(tensor) if tensor is not None else None
            shape = tensor.dims if tensor is not None else None
        elif number == ATTRIBUTE_TEXT:
            word = bytes(message(value))[:LONGEST_WORD].decode("ascii", "replace")
        elif number == ATTRIBUTE_FLOATS:
            floats += len(message(value)) // 4 if isinstance(value, memoryview) else 1
        elif number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            facts.subgraphs = True
        elif number in (ATTRIBUTE_SPARSE, ATTRIBUTE_SPARSES):
            facts.sparse_tensors = True
        elif number in (ATTRIBUTE_INTEGER, ATTRIBUTE_INTEGERS):
            numbers += integers(value)
    largest = max(map(abs, numbers), default=0)
    if name in WINDOWS:
        facts.largest_window = max(facts.largest_window, largest)
    facts.largest_attribute = max(facts.largest_attribute, largest)
    if shape is None:
        shape = [] if name in ("value_int", "value_float") else [max(len(numbers), floats)]
    values = tuple(numbers) if numbers else None if found is None else tuple(found)
    return Attribute(name, tuple(numbers), word, values, tuple(shape))


def _read_tensor(data: memoryview, facts: GraphFacts) -> TensorFacts | None:
    """Note whether a tensor's data lie in another file, and return what it says if they do not."""
    if any(number == TENSOR_EXTERNAL or (number == TENSOR_LOCATION and value != 0) for number, value in fields(data)):
        facts.external_data = True
        return None
    return read_tensor(data)
