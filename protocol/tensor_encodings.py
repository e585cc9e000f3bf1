"""Trees of float32 tensors in fewer bytes: float32 as they are, float16, or int8 with one scale for each tensor.

The worst error of a number, stated before anything is sent: float32 none; float16 half a unit in the last place, which is
2**-11 of the number, or 2**-25 where that is more; int8 half a step, which is 1/254 of the largest number of its tensor,
and the rounding of float32 besides (2**-22 of that number). What float16 cannot hold is refused, never turned into infinity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InputError
from protocol.message_checks import NotFiniteMessageError, require, require_text
from protocol.tensors import Array

Encoding: TypeAlias = Literal["float32", "float16", "int8"]
Tree: TypeAlias = dict[str, NDArray[np.float32]]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)
SCALES = "/scales"  # no parameter can be called so
STEPS = 127
MAXIMUM_TENSORS = 4096
MAXIMUM_TENSOR_NAME = 200
LARGEST_HALF = float(np.finfo(np.float16).max)
DTYPES: Mapping[str, np.dtype[np.generic]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "int8": np.dtype(np.int8),
}


def encode_tree(tensors: Mapping[str, Array], encoding: Encoding) -> dict[str, Array]:
    """Return the tensors as they travel.

    Args:
        tensors: Name -> float32 of any shape, not empty.
        encoding: How; int8 adds one tensor of scales, (T,) float32, in the order of the sorted names.

    Raises:
        InputError: Another dtype, or numbers beyond what the encoding holds.
        NotFiniteMessageError: NaN or infinity.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != np.float32:
            raise InputError(f"tensor {name!r} cannot be encoded", expected="float32", got=tensor.dtype)
    check_finite(tensors)
    names = sorted(tensors)
    if encoding == "float32":
        return {name: tensors[name] for name in names}
    if encoding == "float16":
        return {name: _halve(name, tensors[name]) for name in names}
    scales = np.array([np.abs(tensors[name]).max(initial=0.0) / STEPS for name in names], np.float32)
    steps = {name: _quantise(tensors[name], scale) for name, scale in zip(names, scales, strict=True)}
    return {**steps, SCALES: scales}


def decode_tree(tensors: Mapping[str, Array], encoding: Encoding) -> Tree:
    """Return the float32 tensors that travelled as ``tensors``, which ``check_tree`` has accepted."""
    if encoding != "int8":
        return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    names = sorted(tensors.keys() - {SCALES})
    scales = np.asarray(tensors[SCALES], np.float32)
    return {name: (tensors[name].astype(np.float32) * scale).astype(np.float32) for name, scale in zip(names, scales, strict=True)}


def error_bound(tensors: Mapping[str, Array], encoding: Encoding) -> float:
    """Return the largest difference that encoding and decoding these tensors can make in any number."""
    largest = max((float(np.abs(tensor).max(initial=0.0)) for tensor in tensors.values()), default=0.0)
    if encoding == "float32":
        return 0.0
    return max(largest * 2.0**-11, 2.0**-25) if encoding == "float16" else largest * (0.5 / STEPS + 2.0**-22) + 2.0**-149 * STEPS


def check_tree(tensors: Mapping[str, Array], encoding: str) -> None:
    """Refuse a tree that is not what its encoding says.

    Raises:
        MalformedMessageError: No tensor or too many, a name too long, another dtype, scales that do not fit.
        NotFiniteMessageError: NaN or infinity.
    """
    require(encoding in ENCODINGS, "the encoding of a tree is unknown", encoding, ENCODINGS)
    values = {name: tensor for name, tensor in tensors.items() if encoding != "int8" or name != SCALES}
    require(0 < len(values) <= MAXIMUM_TENSORS, "a tree has no tensors, or too many", len(values), f"1 to {MAXIMUM_TENSORS}")
    for name, tensor in values.items():
        require_text("name of a tensor", name, MAXIMUM_TENSOR_NAME)
        require(not name.startswith("/") and name != "", "the name of a tensor is not allowed", repr(name[:80]))
        require(tensor.dtype == DTYPES[encoding], f"tensor {name[:80]} has the wrong dtype", tensor.dtype, encoding)
        require(tensor.size > 0 and tensor.ndim <= 8, f"tensor {name[:80]} has an impossible shape", tensor.shape)
    if encoding == "int8":
        scales = tensors.get(SCALES, np.zeros(0, np.float32))
        fits = scales.dtype == np.float32 and scales.shape == (len(values),)
        require(fits, "the scales of a tree do not fit it", f"{scales.dtype} {scales.shape}", f"float32 ({len(values)},)")
    check_finite(tensors)
    if encoding == "int8":
        scales = tensors[SCALES]
        require(bool((np.asarray(scales, np.float64) >= 0).all()), "a scale of a tree is negative")
        require(bool((np.asarray(scales, np.float64) * 128 <= np.finfo(np.float32).max).all()), "a scale of a tree is too large")


def check_finite(tensors: Mapping[str, Array]) -> None:
    """Refuse NaN and infinity.

    Raises:
        NotFiniteMessageError: A tensor holds one.
    """
    for name, tensor in tensors.items():
        if np.issubdtype(tensor.dtype, np.floating) and not np.isfinite(tensor.astype(np.float64, copy=False)).all():
            raise NotFiniteMessageError(f"tensor {name[:80]} is not finite", expected="numbers", got="NaN or infinity")


def _halve(name: str, tensor: Array) -> NDArray[np.float16]:
    """Return a tensor in half precision."""
    with np.errstate(over="ignore"):
        half = tensor.astype(np.float16)
    if not np.isfinite(half.astype(np.float32)).all():
        got = f"{np.abs(tensor).max():g}"
        raise InputError(f"tensor {name!r} does not fit float16", expected=f"numbers up to {LARGEST_HALF:g}", got=got, hint="use float32")
    return half


def _quantise(tensor: Array, scale: np.float32) -> NDArray[np.int8]:
    """Return a tensor in steps of a scale, which is 0 when every number is."""
    if scale == 0:
        return np.zeros(tensor.shape, np.int8)
    return np.clip(np.rint(tensor.astype(np.float64) / float(scale)), -STEPS, STEPS).astype(np.int8)
