"""A small walker over the bytes of an ONNX model, with the standard library alone.

It reads just enough to judge a graph before ONNX Runtime sees it: versions, operators, external data, subgraphs,
functions, names of inputs and outputs. Anything it cannot follow is refused. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from protocol.errors import UnsafeGraphError
from protocol.manifest import GraphSpec
from protocol.operators import ALLOWED_OPERATORS

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
LARGEST_FIELD_NUMBER = 2**29 - 1
MAXIMUM_NODES = 100_000

# ModelProto, GraphProto, NodeProto, AttributeProto, TensorProto, ValueInfoProto, OperatorSetIdProto
MODEL_IR, MODEL_GRAPH, MODEL_OPSET, MODEL_TRAINING, MODEL_FUNCTION = 1, 7, 8, 20, 25
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_SPARSE = 1, 5, 11, 12, 15
NODE_OPERATOR, NODE_ATTRIBUTE, NODE_DOMAIN = 4, 5, 7
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS, ATTRIBUTE_SPARSE, ATTRIBUTE_SPARSES = 5, 6, 10, 11, 22, 23
TENSOR_EXTERNAL, TENSOR_LOCATION = 13, 14
VALUE_NAME = 1
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
    nodes: int = 0
    external_data: bool = False
    subgraphs: bool = False
    functions: bool = False
    sparse_tensors: bool = False
    training: bool = False


def inspect_graph(data: bytes) -> GraphFacts:
    """Return the facts of an ONNX model.

    Raises:
        UnsafeGraphError: The bytes are not a well-formed model.
    """
    facts = GraphFacts()
    graphs = 0
    for number, value in _fields(memoryview(data)):
        if number == MODEL_IR:
            facts.ir_version = _integer(value)
        elif number == MODEL_OPSET:
            _read_opset(_message(value), facts)
        elif number == MODEL_GRAPH:
            graphs += 1
            _read_graph(_message(value), facts)
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
    _compare_with_spec(facts, spec)


def _compare_with_spec(facts: GraphFacts, spec: GraphSpec) -> None:
    """Refuse a graph whose facts differ from the manifest."""
    opset = max((version for domain, version in facts.opsets.items() if domain in DEFAULT_DOMAINS), default=0)
    pairs: Mapping[str, tuple[object, object]] = {
        "opset": (spec.opset, opset),
        "IR version": (spec.ir_version, facts.ir_version),
        "operators": (sorted(spec.operators), sorted(facts.operators)),
        "inputs": ([each.name for each in spec.inputs], facts.inputs),
        "outputs": ([each.name for each in spec.outputs], facts.outputs),
    }
    for name, (expected, got) in pairs.items():
        if expected != got:
            raise UnsafeGraphError(f"{spec.file}: {name} differ from the manifest", expected=expected, got=got)


def _read_opset(data: memoryview, facts: GraphFacts) -> None:
    """Note one operator set."""
    domain, version = "", 0
    for number, value in _fields(data):
        if number == OPSET_DOMAIN:
            domain = _text(value)
        elif number == OPSET_VERSION:
            version = _integer(value)
    facts.opsets[domain] = version


def _read_graph(data: memoryview, facts: GraphFacts) -> None:
    """Note nodes, initialisers, inputs and outputs."""
    for number, value in _fields(data):
        if number == GRAPH_NODE:
            facts.nodes += 1
            if facts.nodes > MAXIMUM_NODES:
                raise UnsafeGraphError("a graph has too many nodes", expected=f"at most {MAXIMUM_NODES}")
            _read_node(_message(value), facts)
        elif number == GRAPH_INITIALIZER:
            _read_tensor(_message(value), facts)
        elif number == GRAPH_SPARSE:
            facts.sparse_tensors = True
        elif number in (GRAPH_INPUT, GRAPH_OUTPUT):
            names = facts.inputs if number == GRAPH_INPUT else facts.outputs
            names.append(_first_text(_message(value), VALUE_NAME))


def _read_node(data: memoryview, facts: GraphFacts) -> None:
    """Note a node's operator, domain and what its attributes hide."""
    for number, value in _fields(data):
        if number == NODE_OPERATOR:
            facts.operators.add(_text(value))
        elif number == NODE_DOMAIN and _text(value) not in DEFAULT_DOMAINS:
            facts.foreign_domains.add(_text(value))
        elif number == NODE_ATTRIBUTE:
            _read_attribute(_message(value), facts)


def _read_attribute(data: memoryview, facts: GraphFacts) -> None:
    """Note tensors and graphs inside an attribute."""
    for number, value in _fields(data):
        if number in (ATTRIBUTE_TENSOR, ATTRIBUTE_TENSORS):
            _read_tensor(_message(value), facts)
        elif number in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
            facts.subgraphs = True
        elif number in (ATTRIBUTE_SPARSE, ATTRIBUTE_SPARSES):
            facts.sparse_tensors = True


def _read_tensor(data: memoryview, facts: GraphFacts) -> None:
    """Note whether a tensor's data lie in another file."""
    for number, value in _fields(data):
        if number == TENSOR_EXTERNAL or (number == TENSOR_LOCATION and value != 0):
            facts.external_data = True


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield each field's number and value: an integer, or the bytes it spans."""
    return ((number, value) for number, value, _ in field_spans(data))


def field_spans(data: memoryview) -> Iterator[tuple[int, int | memoryview, memoryview]]:
    """Yield each field's number, its value (an integer, or the bytes it spans), and all of its bytes, the tag included.

    Raises:
        UnsafeGraphError: The bytes are malformed.
    """
    position = 0
    while position < len(data):
        start = position
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if not 0 < number <= LARGEST_FIELD_NUMBER:  # other readers would cut it to 32 bits and see another field
            raise UnsafeGraphError("a model's bytes are malformed", got=f"field number {number}")
        if kind == VARINT:
            value, position = _varint(data, position)
            yield number, value, data[start:position]
            continue
        if kind == LENGTH_DELIMITED:
            size, position = _varint(data, position)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise UnsafeGraphError("a model's bytes are malformed", got=f"wire type {kind}")
        if size > len(data) - position:
            raise UnsafeGraphError("a model is truncated", expected=f"{size} bytes", got=f"{len(data) - position}")
        position += size
        yield number, data[position - size : position], data[start:position]


def value_name(value: int | memoryview) -> str:
    """Return the name of an input or output, from the value of its field.

    Raises:
        UnsafeGraphError: The bytes are malformed.
    """
    return _first_text(_message(value), VALUE_NAME)


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return an integer of up to 64 bits and where the next thing begins."""
    result = 0
    for place in range(10):
        if position + place >= len(data):
            raise UnsafeGraphError("a model is truncated", expected="the rest of a number")
        byte = data[position + place]
        result |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return result, position + place + 1
    raise UnsafeGraphError("a model's bytes are malformed", got="a number over 64 bits")


def _integer(value: int | memoryview) -> int:
    """Return an integer field."""
    if isinstance(value, int):
        return value
    raise UnsafeGraphError("a model's bytes are malformed", expected="an integer", got="bytes")


def _message(value: int | memoryview) -> memoryview:
    """Return a field that spans bytes."""
    if isinstance(value, memoryview):
        return value
    raise UnsafeGraphError("a model's bytes are malformed", expected="bytes", got="an integer")


def _text(value: int | memoryview) -> str:
    """Return a text field."""
    try:
        return bytes(_message(value)).decode()
    except UnicodeDecodeError as error:
        raise UnsafeGraphError("a model's bytes are malformed", expected="UTF-8 text") from error


def _first_text(data: memoryview, wanted: int) -> str:
    """Return the text in one field of a message, or nothing."""
    return next((_text(value) for number, value in _fields(data) if number == wanted), "")
