"""The safetensors reader: agrees with the library on good files, refuses hostile ones."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from protocol.errors import BundleFileError, MalformedMessageError
from protocol.tensors import TensorLimits, decode_tensors, encode_tensors

DTYPES = ["<f8", "<f4", "<f2", "<i8", "<i4", "i1", "u1", "?"]
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")


def arrays() -> st.SearchStrategy[np.ndarray]:
    return st.sampled_from(DTYPES).flatmap(
        lambda dtype: npst.arrays(
            dtype,
            npst.array_shapes(min_dims=0, max_dims=3, max_side=3),
            elements=npst.from_dtype(np.dtype(dtype), min_value=-1000, max_value=1000) if dtype.startswith("<f") else None,
        )
    )


def raw(header: object, body: bytes = b"") -> bytes:
    """Return safetensors bytes with any header."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + body


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        assert array.shape == other[name].shape
        assert array.tobytes() == other[name].tobytes()


@given(st.dictionaries(NAMES, arrays(), max_size=4))
def test_arrays_come_back(tensors: dict[str, np.ndarray]) -> None:
    assert_same(decode_tensors(encode_tensors(tensors, {"made": "here"})), tensors)


@given(st.dictionaries(st.text("abc.", min_size=1, max_size=4), arrays(), min_size=1, max_size=4))
def test_the_library_agrees(tensors: dict[str, np.ndarray]) -> None:
    library = pytest.importorskip("safetensors.numpy", reason="needs the package safetensors")
    assert_same(library.load(encode_tensors(tensors)), tensors)
    assert_same(decode_tensors(library.save(tensors)), tensors)


def test_bytes_do_not_depend_on_the_order() -> None:
    one, two = np.ones(2, np.float32), np.zeros(3, np.int64)
    assert encode_tensors({"a": one, "b": two}) == encode_tensors({"b": two, "a": one})


def test_strided_and_big_endian_arrays_are_written_right() -> None:
    strided, big = np.arange(6, dtype=np.float32).reshape(2, 3).T, np.arange(3, dtype=">i4")
    read = decode_tensors(encode_tensors({"strided": strided, "big": big}))
    np.testing.assert_array_equal(read["strided"], strided)
    np.testing.assert_array_equal(read["big"], big)


def test_bfloat16_is_read_as_float32() -> None:
    data = raw({"x": entry("BF16", [3], [0, 6])}, np.array([0x3F80, 0xC000, 0x0000], "<u2").tobytes())
    read = decode_tensors(data)["x"]
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, np.array([1.0, -2.0, 0.0], np.float32))


def test_arrays_are_writable_copies() -> None:
    read = decode_tensors(encode_tensors({"x": np.zeros(2, np.float32)}))["x"]
    read[0] = 1


HOSTILE = {
    "no length": b"\0\0\0",
    "header longer than the data": (100).to_bytes(8, "little") + b"{}",
    "huge header": (2**63).to_bytes(8, "little") + b"{}",
    "header is a list": raw([]),
    "header is not JSON": raw(b"{]"),
    "repeated name": raw(
        b'{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"
    ),
    "unknown dtype": raw({"x": entry("F8_E4M3", [8])}, bytes(8)),
    "dtype is a list": raw({"x": entry([], [8])}, bytes(8)),  # type: ignore[arg-type]
    "unknown key": raw({"x": {**entry(), "extra": 1}}, bytes(8)),
    "missing key": raw({"x": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    "trailing bytes": raw({"x": entry()}, bytes(9)),
    "truncated": raw({"x": entry()}, bytes(7)),
    "hole": raw({"x": entry("U8", [1], [0, 1]), "y": entry("U8", [1], [2, 3])}, bytes(3)),
    "overlap": raw({"x": entry("U8", [2], [0, 2]), "y": entry("U8", [2], [1, 3])}, bytes(3)),
    "same place twice": raw({"x": entry("U8", [2], [0, 2]), "y": entry("U8", [2], [0, 2])}, bytes(2)),
    "size differs from shape": raw({"x": entry("F32", [3], [0, 8])}, bytes(8)),
    "overflowing shape": raw({"x": entry("F32", [2**40, 2**40, 2**40], [0, 8])}, bytes(8)),
    "shape that wraps to the size": raw({"x": entry("U8", [2**32, 2**32], [0, 0])}),
    "negative size": raw({"x": entry("F32", [-2], [0, 8])}, bytes(8)),
    "two negative sizes": raw({"x": entry("F32", [-1, -2], [0, 8])}, bytes(8)),
    "empty tensor": raw({"x": entry("F32", [0], [0, 0])}),
    "reversed offsets": raw({"x": entry("F32", [2], [8, 0])}, bytes(8)),
    "three offsets": raw({"x": entry("F32", [2], [0, 8, 8])}, bytes(8)),
    "shape is true": raw({"x": entry("U8", [True], [0, 1])}, bytes(1)),
    "too many axes": raw({"x": entry("U8", [1] * 9, [0, 1])}, bytes(1)),
    "metadata is a number": raw({"__metadata__": 1}),
    "metadata holds a number": raw({"__metadata__": {"a": 1}}),
    "bool of another byte": raw({"x": entry("BOOL", [2], [0, 2])}, b"\x01\x02"),
    "NaN": encode_tensors({"x": np.array([np.nan], np.float32)}),
    "infinity": encode_tensors({"x": np.array([np.inf], np.float64)}),
    "infinity in half precision": encode_tensors({"x": np.array([np.inf], np.float16)}),
    "NaN in half precision": encode_tensors({"x": np.array([np.nan], np.float16)}),
    "infinity in bfloat16": raw({"x": entry("BF16", [1], [0, 2])}, b"\x80\x7f"),
    "absurdly large": encode_tensors({"x": np.array([1e7], np.float32)}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode_tensors(data)


def test_limits_are_the_readers_choice() -> None:
    data = encode_tensors({"x": np.array([np.nan, np.inf], np.float32), "y": np.ones(1, np.float32)})
    assert decode_tensors(data, TensorLimits(magnitude=None)).keys() == {"x", "y"}
    with pytest.raises(BundleFileError):
        decode_tensors(data, TensorLimits(tensors=1, magnitude=None), BundleFileError)
    with pytest.raises(BundleFileError):
        decode_tensors(data, TensorLimits(header_bytes=32, magnitude=None), BundleFileError)


@pytest.mark.parametrize("array", [np.zeros(0, np.float32), np.zeros(1, np.complex64), np.array(["text"]), np.array([None])])
def test_what_the_format_cannot_hold_is_not_written(array: np.ndarray) -> None:
    with pytest.raises(MalformedMessageError):
        encode_tensors({"x": array})


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        decode_tensors(data)
    except MalformedMessageError:
        return


@given(st.data())
def test_any_flipped_byte_is_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(encode_tensors({"x": np.arange(4, dtype=np.float32), "y": np.ones((2, 2), np.int8)}))
    good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_tensors(bytes(good))
    except MalformedMessageError:
        return
