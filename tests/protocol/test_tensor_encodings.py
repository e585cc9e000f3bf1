"""Encodings keep the error that they state, and refuse what they cannot hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from protocol.errors import InputError, MalformedMessageError
from protocol.message_checks import NotFiniteMessageError
from protocol.tensor_encodings import ENCODINGS, SCALES, Encoding, check_tree, decode_tree, encode_tree, error_bound

NAMES = st.text("abc.0", min_size=1, max_size=6)


def trees(largest: float) -> st.SearchStrategy[dict[str, np.ndarray]]:
    shapes = npst.array_shapes(min_dims=0, max_dims=3, max_side=4)
    return st.dictionaries(NAMES, npst.arrays(np.float32, shapes, elements=st.floats(-largest, largest, width=32)), min_size=1, max_size=4)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(data=st.data())
def test_the_stated_error_holds(encoding: Encoding, data: st.DataObject) -> None:
    tree = data.draw(trees(65504.0 if encoding == "float16" else 2.0**126))
    encoded = encode_tree(tree, encoding)
    check_tree(encoded, encoding)
    decoded = decode_tree(encoded, encoding)
    assert decoded.keys() == tree.keys()
    bound = error_bound(tree, encoding)
    for name, tensor in tree.items():
        assert decoded[name].dtype == np.float32
        assert decoded[name].shape == tensor.shape
        difference = np.abs(decoded[name].astype(np.float64) - tensor)
        assert difference.max(initial=0.0) <= bound


@pytest.mark.parametrize(("encoding", "relative"), [("float32", 0.0), ("float16", 2.0**-11), ("int8", 1 / 254)])
def test_the_errors_of_the_documentation(encoding: Encoding, relative: float) -> None:
    tree = {"weight": np.random.default_rng(0).normal(size=(200, 100)).astype(np.float32)}
    largest = float(np.abs(tree["weight"]).max())
    assert error_bound(tree, encoding) == pytest.approx(relative * largest, rel=1e-4)
    found = np.abs(decode_tree(encode_tree(tree, encoding), encoding)["weight"] - tree["weight"]).max()
    assert relative * largest / 4 <= found <= error_bound(tree, encoding)  # and they are no empty promises


def test_sizes() -> None:
    tree = {"a": np.ones((10, 10), np.float32), "b": np.ones(5, np.float32)}
    sizes = {encoding: sum(tensor.nbytes for tensor in encode_tree(tree, encoding).values()) for encoding in ENCODINGS}
    assert sizes == {"float32": 420, "float16": 210, "int8": 105 + 8}


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_encoded(encoding: Encoding, value: float) -> None:
    with pytest.raises(NotFiniteMessageError):
        encode_tree({"a": np.array([1, value], np.float32)}, encoding)


def test_half_precision_refuses_what_would_become_infinity() -> None:
    with pytest.raises(InputError, match="float16"):
        encode_tree({"a": np.array([70_000], np.float32)}, "float16")


def test_another_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="float32"):
        encode_tree({"a": np.ones(2)}, "float32")


def test_zeros_stay_zeros() -> None:
    assert not decode_tree(encode_tree({"a": np.zeros(4, np.float32)}, "int8"), "int8")["a"].any()


HALF, BYTES, SINGLE = np.ones(2, np.float16), np.ones(2, np.int8), np.ones(2, np.float32)
WRONG = {
    "unknown encoding": ({"a": SINGLE}, "bfloat16"),
    "nothing": ({}, "float32"),
    "nothing but scales": ({SCALES: SINGLE}, "int8"),
    "another dtype": ({"a": HALF}, "float32"),
    "float for int8": ({"a": SINGLE, SCALES: SINGLE[:1]}, "int8"),
    "no scales": ({"a": BYTES}, "int8"),
    "too many scales": ({"a": BYTES, SCALES: SINGLE}, "int8"),
    "scales in half precision": ({"a": BYTES, SCALES: HALF[:1]}, "int8"),
    "scales in float32": ({"a": SINGLE, SCALES: SINGLE[:1]}, "float32"),
    "negative scale": ({"a": BYTES, SCALES: -SINGLE[:1]}, "int8"),
    "scale that makes infinity": ({"a": BYTES, SCALES: SINGLE[:1] * np.float32(1e37)}, "int8"),
    "scale NaN": ({"a": BYTES, SCALES: SINGLE[:1] * np.float32(np.nan)}, "int8"),
    "NaN": ({"a": SINGLE * np.float32(np.nan)}, "float32"),
    "infinity": ({"a": HALF * np.float16(np.inf)}, "float16"),
    "name too long": ({"a" * 201: SINGLE}, "float32"),
    "name breaks lines": ({"a\nb": SINGLE}, "float32"),
    "name of scales": ({"/x": SINGLE}, "float32"),
    "no name": ({"": SINGLE}, "float32"),
    "empty": ({"a": SINGLE[:0]}, "float32"),
    "nine axes": ({"a": SINGLE.reshape((1,) * 8 + (2,))}, "float32"),
}


@pytest.mark.parametrize(("tensors", "encoding"), WRONG.values(), ids=WRONG)
def test_a_tree_that_is_not_what_it_says_is_refused(tensors: dict[str, np.ndarray], encoding: str) -> None:
    with pytest.raises(MalformedMessageError):
        check_tree(tensors, encoding)
