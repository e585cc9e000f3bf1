"""Evil in a graph: what it may do, what it asks for, and how its bytes may be understood."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.protocol.evil.drafts import Changes, G, Kind, V, model, pair, put
from tests.protocol.samples import ModelParts, bytes_field, initializer, number_field, value_info, varint

WEIGHT = initializer("weight", np.arange(6, dtype=np.float32).reshape(3, 2))
PICTURE = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
HUGE = 2**40


def node(operator: str, inputs: list[str], output: str, attributes: bytes = b"", domain: str = "") -> bytes:
    """Return a graph's field with a further node."""
    content = b"".join(bytes_field(1, name) for name in inputs) + bytes_field(2, output) + bytes_field(4, operator) + attributes
    return bytes_field(1, content + (bytes_field(7, domain) if domain else b""))


def int64s(name: str, values: list[int], scalar: bool = False) -> bytes:
    """Return a graph's field with a constant of int64."""
    sizes = b"" if scalar else number_field(1, len(values))
    return bytes_field(5, sizes + number_field(2, 7) + bytes_field(8, name) + bytes_field(9, np.array(values, "<i8").tobytes()))


def with_nodes(content: bytes, *operators: str) -> Changes:
    """Return a model with further nodes, all of whose operators the manifest lists."""
    return {**model(graph=content), "operators": tuple(sorted({"MatMul", *operators}))}


def operator(name: str) -> Changes:
    """Return a model with a further node of an operator."""
    return with_nodes(node(name, ["logits"], "more"), name)


def domain(name: str) -> Changes:
    return with_nodes(node("Relu", ["logits"], "more", domain=name), "Relu")


def inside_attribute(content: bytes) -> Changes:
    """Return a model with a node that has an attribute."""
    return with_nodes(node("Relu", ["logits"], "more", bytes_field(5, bytes_field(1, "a") + content)), "Relu")


def named_attribute(name: str, content: bytes) -> Changes:
    return with_nodes(node("Relu", ["logits"], "more", bytes_field(5, bytes_field(1, name) + content)), "Relu")


def sized(name: str, values: list[int]) -> Changes:
    """Return a model with a node that makes a tensor of a size that a constant says."""
    return with_nodes(node(name, ["weight", "size"], "big") + int64s("size", values), name)


def sized_by_node(values: list[int]) -> Changes:
    """Return the same with the size in an attribute of a Constant node, as a tensor."""
    tensor = number_field(1, len(values)) + number_field(2, 7) + bytes_field(9, np.array(values, "<i8").tobytes())
    constant = node("Constant", [], "size", bytes_field(5, bytes_field(1, "value") + bytes_field(5, tensor) + number_field(20, 4)))
    return with_nodes(constant + node("Expand", ["weight", "size"], "big"), "Constant", "Expand")


def sized_by_arithmetic(name: str, factor: int) -> Changes:
    """Return the same with the size as the product, sum or concatenation of two constants."""
    attributes = bytes_field(5, bytes_field(1, "axis") + number_field(3, 0) + number_field(20, 2)) if name == "Concat" else b""
    content = int64s("one", [factor]) + int64s("two", [factor]) + node(name, ["one", "two"], "size", attributes)
    return with_nodes(content + node("Expand", ["weight", "size"], "big"), name, "Expand")


def sized_by_square(times: int) -> Changes:
    """Return the same with a constant that is squared again and again: few bytes, a number of any length."""
    content, last = int64s("square0", [2, 2]), "square0"
    for number in range(1, times + 1):
        content += node("Mul", [last, last], f"square{number}")
        last = f"square{number}"
    return with_nodes(content + node("Expand", ["weight", last], "big"), "Mul", "Expand")


def sized_by_shape(source: str) -> Changes:
    """Return the same with the size read from the shape of a constant, twice over."""
    large = bytes_field(5, initializer("large", np.zeros((200, 200), np.float32)))
    content = large + node("Shape", [source], "own") + node("Mul", ["own", "own"], "size")
    return with_nodes(content + node("Expand", ["weight", "size"], "big"), "Shape", "Mul", "Expand")


def sized_by_data(maker: str) -> Changes:
    """Return the same with the size computed from what the device feeds, or from its shape."""
    content = node(maker, ["samples"], "own") + node("Cast", ["own"], "size", bytes_field(5, bytes_field(1, "to") + number_field(3, 7)))
    return with_nodes(content + node("Expand", ["weight", "size"], "big"), maker, "Cast", "Expand")


def outer_product(length: int) -> Changes:
    """Return a model with the product of a row of so many zeros and itself as a column."""
    row = bytes_field(5, initializer("row", np.zeros((1, length), np.float32)))
    content = row + node("Transpose", ["row"], "column") + node("Mul", ["row", "column"], "grid")
    return with_nodes(content, "Transpose", "Mul")


def rows_by_rows(columns: int) -> Changes:
    """Return a model that multiplies what a device feeds, as one long row, by itself as a column."""
    content = bytes_field(5, initializer("wide", np.zeros((3, columns), np.float32)))
    content += int64s("as_row", [1, -1]) + int64s("as_column", [-1, 1]) + node("MatMul", ["samples", "wide"], "fed")
    content += node("Reshape", ["fed", "as_row"], "row") + node("Reshape", ["fed", "as_column"], "column")
    return with_nodes(content + node("Mul", ["row", "column"], "grid"), "Reshape", "Mul")


def sized_by_choice(condition: list[int], values: list[int]) -> Changes:
    """Return an expansion by one of two equal sizes, stretched to the length of a condition."""
    content = int64s("zeros", condition) + int64s("values", values) + node("Equal", ["zeros", "zeros"], "all")
    content += node("Where", ["all", "values", "values"], "size")
    return with_nodes(content + node("Expand", ["weight", "size"], "big"), "Equal", "Where", "Expand")


def tensor(*pieces: bytes) -> Changes:
    """Return a model with a further constant beside the weight."""
    return model(graph=bytes_field(5, b"".join(pieces)))


def of_type(number: int, *more: bytes) -> Changes:
    return tensor(number_field(1, 1), number_field(2, number), bytes_field(8, "c"), *(more or (bytes_field(9, b"\0" * 4),)))


def of_sizes(*sizes: int, values: int = 1) -> Changes:
    return tensor(*(number_field(1, size) for size in sizes), number_field(2, 1), bytes_field(8, "c"), bytes_field(9, b"\0" * 4 * values))


def weight_with(content: bytes) -> Changes:
    return model(tensor=WEIGHT + content)


def of_model(content: bytes) -> Changes:
    return model(model=content)


def of_graph(content: bytes) -> Changes:
    return model(graph=content)


def of_node(content: bytes) -> Changes:
    return model(node=content)


def opset(name: str, version: int) -> bytes:
    return bytes_field(8, bytes_field(1, name) + number_field(2, version))


def whole(change: Callable[[bytes], bytes]) -> Changes:
    return {"graph": change}


def stated(field: str, value: Any) -> Changes:
    """Return a manifest that states something of the graph."""
    return put("graphs", "classify", field, value)


def promised(version: int) -> Changes:
    """Return a graph and a manifest of another operator set."""
    data = ModelParts().to_bytes().replace(bytes_field(8, bytes_field(1, "") + number_field(2, 18)), opset("", version))
    return {"graph": lambda _: data, **put("graphs", "classify", "opset", version)}


def other_value(old: bytes, new: bytes | None) -> Changes:
    """Return a graph in which an input or output is another, nothing else changed."""
    fresh = old if new is None else new

    def change(data: bytes) -> bytes:
        inner = data[data.index(bytes_field(2, "tiny")) :]
        assert old in inner
        parts = ModelParts().to_bytes()
        start = len(number_field(1, 8))
        end = parts.index(bytes_field(8, bytes_field(1, "") + number_field(2, 18)))
        header = 1 + len(varint(len(parts[start + 2 : end])))
        graph = parts[start + header : end].replace(old, fresh)
        return parts[:start] + bytes_field(7, graph) + parts[end:]

    return whole(change)


def read(name: str) -> Changes:
    return with_nodes(node("Relu", [name], "more"), "Relu")


def made(name: str) -> Changes:
    return with_nodes(node("Relu", ["logits"], name), "Relu")


INPUT, OUTPUT = bytes_field(11, value_info("samples", ("N", 3))), bytes_field(12, value_info("logits", ("N", 2)))
SEQUENCE = bytes_field(12, bytes_field(1, "logits") + bytes_field(2, bytes_field(4, b"")))
DOUBLE = OUTPUT.replace(number_field(1, 1) + b"\x12", number_field(1, 11) + b"\x12", 1)
EXTERNAL = bytes_field(13, bytes_field(1, "location") + bytes_field(2, "../../etc/passwd"))
METADATA = bytes_field(1, "ort_config") + bytes_field(2, '{"session_options": {}}')
EXTERNAL_DATA, NO_TENSOR = "holds external data", "is no tensor"
BODY = bytes_field(6, bytes_field(2, "body"))
ONE_INTEGER = number_field(3, 1) + number_field(20, 2)

KINDS: dict[str, Kind] = {
    # what it may do
    **{
        f"the operator {name}": pair(operator, name, "Relu", G, f"off the allow-list: got {name}$")
        for name in (
            "Loop",
            "Scan",
            "If",
            "ConstantOfShape",
            "Range",
            "RandomNormal",
            "Multinomial",
            "SequenceInsert",
            "StringNormalizer",
            "NonZero",
            "Tile",
            "Resize",
            "OneHot",
            "EyeLike",
            "ImageDecoder",
            "Evil",
        )
    },
    "an operator of a foreign domain": pair(domain, "com.evil", "ai.onnx", G, "off the allow-list: got com.evil"),
    "an operator of the runtime's own domain": pair(domain, "com.microsoft", "ai.onnx", G, "off the allow-list: got com.microsoft"),
    "a foreign operator set": pair(of_model, opset("com.evil", 1), b"", G, "off the allow-list: got com.evil"),
    "an operator set of a second domain": pair(of_model, opset("ai.onnx.ml", 99), b"", G, "off the allow-list: got ai.onnx.ml"),
    "a function of its own": pair(of_model, bytes_field(25, bytes_field(1, "MatMul")), b"", G, "functions of its own"),
    "training information": pair(of_model, bytes_field(20, b""), b"", G, "training information"),
    "settings of sessions in metadata": pair(of_model, bytes_field(14, METADATA), b"", G, "holds metadata"),
    "metadata of a graph": pair(of_graph, bytes_field(16, METADATA), b"", G, "holds metadata"),
    "metadata of a node": pair(of_node, bytes_field(9, METADATA), b"", G, "holds metadata"),
    "a body inside an attribute": pair(inside_attribute, BODY, ONE_INTEGER, G, "holds subgraphs"),
    "a list of bodies": pair(inside_attribute, bytes_field(11, b""), ONE_INTEGER, G, "holds subgraphs"),
    "a sparse constant": pair(of_graph, bytes_field(15, b""), b"", G, "sparse tensors"),
    "a sparse attribute": pair(inside_attribute, bytes_field(22, b""), ONE_INTEGER, G, "sparse tensors"),
    # values that lie elsewhere
    "values in another file": pair(weight_with, EXTERNAL + number_field(14, 1), b"", G, EXTERNAL_DATA),
    "values in another file, by the flag alone": pair(weight_with, number_field(14, 1), number_field(14, 0), G, EXTERNAL_DATA),
    "values in another file, named without the flag": pair(weight_with, EXTERNAL, b"", G, EXTERNAL_DATA),
    "an attribute's values in another file": pair(
        inside_attribute, bytes_field(5, WEIGHT + EXTERNAL), bytes_field(5, WEIGHT), G, EXTERNAL_DATA
    ),
    "a list's values in another file": pair(
        inside_attribute, bytes_field(10, WEIGHT + EXTERNAL), bytes_field(10, WEIGHT), G, EXTERNAL_DATA
    ),
    # constants
    "text as values": pair(of_type, (8, bytes_field(6, "x")), (1, bytes_field(9, b"\0" * 4)), G, "no accepted dtype.*got text"),
    "values of a kind nobody knows": pair(of_type, 77, 1, G, "got type number 77"),
    "complex numbers": pair(of_type, 14, 1, G, "got type number 14"),
    "sizes beyond the values": pair(of_sizes, 2**40, 1, G, "does not hold what its sizes say"),
    "sizes whose product overflows": pair(of_sizes, (2**32, 2**32), (1, 1), G, "does not hold what its sizes say"),
    "a negative size": pair(of_sizes, 2**64 - 1, 1, G, "has impossible sizes"),
    "a constant of a hundred axes": pair(of_sizes, (1,) * 100, (1,) * 8, G, "at most 16 axes"),
    # what it asks for
    "an expansion to a terabyte": pair(sized, ("Expand", [2**20, 2**20]), ("Expand", [4, 3, 2]), G, "Expand asks for too much"),
    "an expansion with a negative size": pair(sized, ("Expand", [-HUGE]), ("Expand", [1, 2]), G, "Expand asks for too much"),
    "an expansion by a constant in a node": pair(sized_by_node, [2**20, 2**20], [3, 2], G, "Expand asks for too much"),
    "an expansion by a product": pair(sized_by_arithmetic, ("Mul", 2**20), ("Mul", 2), G, "Expand asks for too much"),
    "an expansion by a sum": pair(sized_by_arithmetic, ("Add", 2**26), ("Add", 2), G, "Expand asks for too much"),
    "an expansion by pieces put together": pair(sized_by_arithmetic, ("Concat", 2**20), ("Concat", 2), G, "Expand asks for too much"),
    "an expansion by squares of squares": pair(sized_by_square, 5, 1, G, "Expand asks for too much"),
    "a number of a million digits": pair(sized_by_square, 60, 1, G, "Expand asks for too much"),
    "an expansion by the shape of a constant": pair(sized_by_shape, "large", "weight", G, "Expand asks for too much"),
    "an expansion by what a device feeds": pair(sized_by_data, "Relu", "Shape", G, "Expand takes its size from data"),
    "an outer product": pair(outer_product, 20_000, 20, G, "Mul asks for too much"),
    "an outer product of what a device feeds": pair(rows_by_rows, 800, 8, G, "Mul asks for too much"),
    "an expansion by a size that a condition repeats": pair(
        sized_by_choice, ([0] * 8, [2**10]), ([0, 0], [3, 2]), G, "Expand takes its size from data"
    ),
    "padding without end": pair(sized, ("Pad", [0, 0, 0, HUGE]), ("Pad", [0, 1, 0, 1]), G, "Pad asks for too much"),
    "padding that takes away": pair(sized, ("Pad", [-HUGE, 0, 0, 0]), ("Pad", [-1, 0, 0, 0]), G, "Pad asks for too much"),
    "an attribute of 2^62": pair(inside_attribute, number_field(3, 2**62), number_field(3, 62), G, "huge attribute"),
    "a negative attribute of that size": pair(
        inside_attribute, number_field(3, 2**64 - 2**62), number_field(3, 2**64 - 2), G, "huge attribute"
    ),
    "a list of huge attributes": pair(
        inside_attribute, bytes_field(8, varint(3) + varint(2**50)), bytes_field(8, varint(3) + varint(5)), G, "huge attribute"
    ),
    "a window of sixty thousand": pair(
        named_attribute, ("pads", number_field(8, 60_000)), ("group", number_field(8, 60_000)), G, "huge attribute"
    ),
    "a hundred thousand nodes": pair(of_graph, node("MatMul", ["samples", "weight"], "x") * 100_000, b"", G, "too many nodes"),
    "a name of a megabyte": pair(made, "x" * 2**20, "x" * 200, G, "name in a graph is too long"),
    # names
    "an input from nowhere": pair(read, "nothing", "weight", G, "no node before it made: got Relu reads 'nothing'"),
    "a node that reads itself": pair(read, "more", "logits", G, "no node before it made"),
    "a name made twice": pair(made, "logits", "more", G, "made twice in a graph"),
    "a constant made anew": pair(made, "weight", "more", G, "made twice in a graph"),
    "a constant of a name twice": pair(
        of_graph, bytes_field(5, WEIGHT), bytes_field(5, WEIGHT.replace(b"weight", b"second")), G, "one constant twice"
    ),
    "a constant without a name": pair(
        tensor,
        (number_field(1, 1), number_field(2, 1), bytes_field(9, b"\0" * 4)),
        (number_field(1, 1), number_field(2, 1), bytes_field(8, "c"), bytes_field(9, b"\0" * 4)),
        G,
        "without a name",
    ),
    # what it takes and gives
    "a further input": pair(of_graph, bytes_field(11, value_info("secret", (1,))), b"", G, "inputs differ"),
    "a further output": pair(of_graph, bytes_field(12, value_info("weight", (3, 2))), b"", G, "outputs differ"),
    "an input with a hidden default": pair(
        of_graph, bytes_field(5, initializer("samples", np.zeros((1, 3), np.float32))), b"", G, "optional inputs differ"
    ),
    "a sequence as an output": pair(other_value, (OUTPUT, SEQUENCE), (OUTPUT, None), G, NO_TENSOR),
    "an output of another dtype": pair(other_value, (OUTPUT, DOUBLE), (OUTPUT, None), G, "dtype of logits differs"),
    "an output of another size": pair(
        other_value, (OUTPUT, bytes_field(12, value_info("logits", ("N", 5)))), (OUTPUT, None), G, "shape of logits differs"
    ),
    "an input that fixes the batch": pair(
        other_value, (INPUT, bytes_field(11, value_info("samples", (1, 3)))), (INPUT, None), G, "shape of samples differs"
    ),
    "an input of another number of axes": pair(
        other_value, (INPUT, bytes_field(11, value_info("samples", ("N", 3, 1)))), (INPUT, None), G, "shape of samples differs"
    ),
    "an output without a type": pair(other_value, (OUTPUT, bytes_field(12, bytes_field(1, "logits"))), (OUTPUT, None), G, NO_TENSOR),
    # against the manifest
    "another operator than listed": pair(stated, ("operators", ["Gemm"]), ("operators", ["MatMul"]), G, "operators differ"),
    "an operator less than listed": pair(stated, ("operators", ["MatMul", "Relu"]), ("operators", ["MatMul"]), G, "operators differ"),
    "another operator set than listed": pair(stated, ("opset", 17), ("opset", 18), G, "opset differ"),
    "another version than listed": pair(stated, ("ir_version", 7), ("ir_version", 8), G, "IR version differ"),
    "an operator set too new for the promised runtime": pair(promised, 25, 21, V, "too new for the ONNX Runtime"),
    "one operator set twice": pair(of_model, opset("", 18), b"", G, "operator set twice"),
    "one operator set by its two names": pair(of_model, opset("ai.onnx", 18), b"", G, "operator set twice"),
    # bytes
    "two graphs in a model": pair(of_model, bytes_field(7, bytes_field(2, "again")), b"", G, "exactly one graph"),
    "no graph in a model": pair(whole, lambda data: number_field(1, 8), lambda data: data, G, "exactly one graph"),
    "two operators in a node": pair(of_node, bytes_field(4, "MatMul"), b"", G, "must have one operator"),
    "a number over 64 bits": pair(of_model, varint(5 << 3) + b"\xff" * 11, varint(5 << 3) + b"\x01", G, "over 64 bits"),
    "a group that begins": pair(of_model, varint(9 << 3 | 3), b"", G, "wire type 3"),
    "a group that ends": pair(of_model, varint(9 << 3 | 4), b"", G, "wire type 4"),
    "a wire type that is none": pair(of_model, varint(9 << 3 | 7), b"", G, "wire type 7"),
    "a field with the number 0": pair(of_model, varint(0) + varint(0), b"", G, "field number 0"),
    "a field whose number is cut to another": pair(of_model, varint((2**32 + 7) << 3) + varint(0), b"", G, "field number"),
    "a length beyond the end": pair(of_model, varint(7 << 3 | 2) + varint(HUGE), b"", G, "truncated"),
    "a number cut short": pair(of_model, varint(5 << 3) + b"\xff", varint(5 << 3) + b"\x01", G, "truncated"),
    "a number in the place of a graph": pair(
        whole, lambda data: number_field(7, 1), lambda data: data, G, "expected bytes, got an integer"
    ),
    "a name that is no text": pair(of_node, bytes_field(2, b"\xff\xfe"), bytes_field(2, b"more"), G, "UTF-8"),
    "a picture in the place of a graph": pair(whole, lambda data: PICTURE, lambda data: data, G, "malformed"),
    "a pickle in the place of a graph": pair(
        whole, lambda data: b"\x80\x04\x95" + b"\0" * 30, lambda data: data, G, "malformed|field number"
    ),
    "a graph cut in half and listed so": pair(whole, lambda data: data[: len(data) // 2], lambda data: data, G, "truncated"),
}
