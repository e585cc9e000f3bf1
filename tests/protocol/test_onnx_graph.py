"""The walker over ONNX bytes: agrees with the onnx package, refuses what could do more than arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import UnsafeGraphError
from protocol.onnx_graph import check_graph, inspect_graph
from protocol.operators import ALLOWED_OPERATORS
from tests.protocol.samples import ModelParts, bytes_field, graph_spec, number_field, varint

GOOD = ModelParts()
SUBGRAPH = bytes_field(5, bytes_field(1, "body") + bytes_field(6, bytes_field(2, "inner")))
EXTERNAL = bytes_field(13, bytes_field(1, "location") + bytes_field(2, "../secret"))


def test_the_facts_of_a_model() -> None:
    facts = inspect_graph(GOOD.to_bytes())
    assert (facts.ir_version, dict(facts.opsets), set(facts.operators)) == (8, {"": 18}, {"MatMul"})
    assert (list(facts.inputs), list(facts.outputs)) == (["samples"], ["logits"])
    assert not facts.external_data
    check_graph(GOOD.to_bytes(), graph_spec())


def test_the_onnx_package_agrees() -> None:
    onnx = pytest.importorskip("onnx", reason="needs the package onnx")
    model = onnx.load_model_from_string(GOOD.to_bytes())
    onnx.checker.check_model(model, full_check=True)
    assert inspect_graph(model.SerializeToString()) == inspect_graph(GOOD.to_bytes())


DANGERS = {
    "loop": replace(GOOD, operator="Loop"),
    "if": replace(GOOD, operator="If"),
    "scan": replace(GOOD, operator="Scan"),
    "random numbers": replace(GOOD, operator="RandomNormal"),
    "size chosen by data": replace(GOOD, operator="ConstantOfShape"),
    "unknown operator": replace(GOOD, operator="Evil"),
    "foreign domain of a node": replace(GOOD, domain="com.microsoft"),
    "training domain": replace(GOOD, domain="ai.onnx.preview.training"),
    "foreign domain of the model": replace(GOOD, model=bytes_field(8, bytes_field(1, "com.microsoft") + number_field(2, 1))),
    "external data of an initialiser": replace(GOOD, tensor=GOOD.tensor + EXTERNAL),
    "external location alone": replace(GOOD, tensor=GOOD.tensor + number_field(14, 1)),
    "external data in an attribute": replace(GOOD, node=bytes_field(5, bytes_field(5, EXTERNAL))),
    "external data in a list attribute": replace(GOOD, node=bytes_field(5, bytes_field(10, EXTERNAL))),
    "subgraph": replace(GOOD, node=SUBGRAPH),
    "list of subgraphs": replace(GOOD, node=bytes_field(5, bytes_field(11, b""))),
    "sparse initialiser": replace(GOOD, graph=bytes_field(15, b"")),
    "sparse attribute": replace(GOOD, node=bytes_field(5, bytes_field(22, b""))),
    "function": replace(GOOD, model=bytes_field(25, bytes_field(1, "MatMul"))),
    "training information": replace(GOOD, model=bytes_field(20, b"")),
    "second graph": replace(GOOD, model=bytes_field(7, b"")),
    "second operator of one node": replace(GOOD, node=bytes_field(4, "Loop")),
    "second opset": replace(GOOD, model=bytes_field(8, number_field(2, 17))),
    "another input": replace(GOOD, graph=bytes_field(11, bytes_field(1, "more"))),
    "another output": replace(GOOD, graph=bytes_field(12, bytes_field(1, "more"))),
    "another IR version": replace(GOOD, model=number_field(1, 99)),
}


@pytest.mark.parametrize("parts", DANGERS.values(), ids=DANGERS)
def test_dangers_are_refused(parts: ModelParts) -> None:
    with pytest.raises(UnsafeGraphError):
        check_graph(parts.to_bytes(), graph_spec())


MALFORMED = {
    "nothing": b"",
    "truncated": GOOD.to_bytes()[:-1],
    "field zero": b"\0\0",
    "group": varint(1 << 3 | 3),
    "endless number": b"\x08" + b"\xff" * 11,
    "length beyond the end": bytes_field(7, b"")[:1] + varint(2**62),
    "tag over 32 bits": GOOD.to_bytes() + varint((1 << 32) | (25 << 3) | 2) + b"\0",
    "graph is a number": number_field(7, 1),
    "text is not UTF-8": replace(GOOD, node=bytes_field(4, b"\xff")).to_bytes(),
    "input without a name": replace(GOOD, graph=bytes_field(11, b"")).to_bytes(),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(UnsafeGraphError):
        check_graph(data, graph_spec())


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        inspect_graph(data)
    except UnsafeGraphError:
        return


@given(st.data())
def test_any_flipped_byte_is_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(GOOD.to_bytes())
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        inspect_graph(bytes(good))
    except UnsafeGraphError:
        return


def test_the_allow_list_holds_operators_of_onnx_and_no_control_flow() -> None:
    assert not ALLOWED_OPERATORS & {"Loop", "Scan", "If", "ConstantOfShape", "Range", "RandomNormal", "SequenceMap", "StringConcat"}
    onnx = pytest.importorskip("onnx", reason="needs the package onnx")
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert known >= ALLOWED_OPERATORS
