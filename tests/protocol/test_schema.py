"""JSON is read strictly: what does not fit is refused and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.schema import MAXIMUM_DEPTH, JsonValue, SchemaError, decode, encode, parse_json, to_json


@dataclass(frozen=True)
class Inner:
    name: str
    sizes: tuple[int | str, ...]


@dataclass(frozen=True)
class Outer:
    count: int
    rate: float
    on: bool
    maybe: float | None
    kind: Literal["device", "sample"]
    inner: Inner
    many: tuple[Inner, ...]
    table: Mapping[str, Inner]
    free: Mapping[str, JsonValue]


GOOD = Outer(3, 0.5, True, None, "device", Inner("a", (1, "N")), (Inner("b", ()),), {"c": Inner("d", (2,))}, {"x": [1, {"y": None}]})


def test_a_dataclass_comes_back() -> None:
    assert decode(Outer, parse_json(to_json(GOOD))) == GOOD


def test_bytes_depend_on_content_alone() -> None:
    shuffled = dict(reversed(encode(GOOD).items()))
    assert to_json(shuffled) == to_json(GOOD)
    assert to_json(GOOD).endswith(b"}\n")


@pytest.mark.parametrize(
    ("key", "value", "place"),
    [
        ("count", True, "document.count"),
        ("count", 1.0, "document.count"),
        ("count", "1", "document.count"),
        ("rate", True, "document.rate"),
        ("rate", None, "document.rate"),
        ("on", 1, "document.on"),
        ("maybe", "none", "document.maybe"),
        ("kind", "both", "document.kind"),
        ("kind", [], "document.kind"),
        ("inner", [], "document.inner"),
        ("inner", {"name": "a"}, "document.inner"),
        ("inner", {"name": "a", "sizes": [], "extra": 1}, "document.inner"),
        ("inner", {"name": "a", "sizes": [1.5]}, "document.inner.sizes[0]"),
        ("inner", {"name": "a", "sizes": [True]}, "document.inner.sizes[0]"),
        ("many", {}, "document.many"),
        ("table", {"c": {"name": 1, "sizes": []}}, "document.table.c.name"),
    ],
)
def test_what_does_not_fit_is_named(key: str, value: object, place: str) -> None:
    with pytest.raises(SchemaError) as caught:
        decode(Outer, {**encode(GOOD), key: value})
    assert caught.value.where == place


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1, "a": 1}',
        b'{"a": NaN}',
        b"[Infinity]",
        b"[-Infinity]",
        b"[1e999]",
        b"[" * 100_000,
        b"[" * (MAXIMUM_DEPTH + 2) + b"]" * (MAXIMUM_DEPTH + 2),
        b"\xff\xfe",
        b'"\xed\xa0\x80"',
        b'["\\ud800"]',
        b'{"\\udfff": 1}',
        b"[1] [2]",
        b"",
        b"[" + b"9" * 5000 + b"]",
        b"[18446744073709551616]",
        b"{'a': 1}",
    ],
)
def test_json_is_strict(text: bytes) -> None:
    with pytest.raises(SchemaError):
        parse_json(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    try:
        value = parse_json(data)
    except SchemaError:
        return
    to_json(value)  # whatever was accepted can be written again


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_plain_values_come_back(value: Any) -> None:
    assert parse_json(to_json(value)) == value


@given(JSON)
def test_any_json_is_decoded_or_refused(value: Any) -> None:
    try:
        decoded = decode(Outer, value)
    except SchemaError:
        return
    assert encode(decoded) == value


@dataclass(frozen=True)
class WithDefault:
    name: str
    note: str | None = None


def test_a_key_whose_field_has_a_default_may_be_missing() -> None:
    assert decode(WithDefault, {"name": "a"}) == WithDefault("a")
    assert decode(WithDefault, {"name": "a", "note": "b"}) == WithDefault("a", "b")
    with pytest.raises(SchemaError, match="missing"):
        decode(WithDefault, {"note": "b"})
    with pytest.raises(SchemaError, match="not known"):
        decode(WithDefault, {"name": "a", "other": "b"})
