"""A tree of tensors as one tensor: names and shapes in the header, all numbers in a row in the body, in the order of the names.

A safetensors entry for each tensor would cost 50 bytes beside its name, which is much when the tensors are small and many.
The scales of an int8 tree follow its numbers, four bytes each (float32, little-endian).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from protocol.errors import MalformedMessageError
from protocol.message_checks import require
from protocol.schema import JsonValue
from protocol.tensor_encodings import MAXIMUM_TENSORS, SCALES
from protocol.tensors import Array

DATA = "data"
MAXIMUM_AXES = 8


def flatten_tree(tensors: Mapping[str, Array]) -> tuple[dict[str, JsonValue], dict[str, Array]]:
    """Return the shape of each tensor by its name, sorted, and the body.

    Raises:
        MalformedMessageError: The tensors are of several dtypes, or there is none.
    """
    names = sorted(tensors.keys() - {SCALES})
    dtypes = {tensors[name].dtype for name in names}
    if len(dtypes) != 1:
        raise MalformedMessageError("a tree has one dtype", got=", ".join(sorted(map(str, dtypes))) or "no tensor")
    parts = [tensors[name].ravel() for name in names]
    if SCALES in tensors:
        parts.append(np.frombuffer(tensors[SCALES].astype("<f4").tobytes(), np.int8))
    return {name: list(tensors[name].shape) for name in names}, {DATA: np.concatenate(parts)}


def unflatten_tree(shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the tensors; they share memory with the body.

    Raises:
        MalformedMessageError: The shapes and the body do not fit.
    """
    require(arrays.keys() == {DATA}, "a tree carries the wrong tensors", sorted(arrays)[:20], DATA)
    require(0 < len(shapes) <= MAXIMUM_TENSORS, "a tree has no tensors, or too many", len(shapes), f"1 to {MAXIMUM_TENSORS}")
    require(SCALES not in shapes, "the name of a tensor is not allowed", repr(SCALES))
    for name, shape in shapes.items():
        sound = len(shape) <= MAXIMUM_AXES and all(size > 0 for size in shape)
        require(sound, f"the shape of {name[:80]} is impossible", str(shape)[:80], f"at most {MAXIMUM_AXES} positive sizes")
    data, count = arrays[DATA], sum(map(math.prod, shapes.values()))
    extra = 4 * len(shapes) if data.dtype == np.int8 else 0
    fits = data.shape == (count + extra,)
    require(fits, "the numbers of a tree are not as many as its shapes say", data.shape, f"({min(count + extra, 2**63)},)")
    tensors, position = dict[str, Array](), 0
    for name in sorted(shapes):
        end = position + math.prod(shapes[name])
        tensors[name] = data[position:end].reshape(shapes[name])
        position = end
    scales = {SCALES: np.frombuffer(data[count:].tobytes(), "<f4").astype(np.float32)} if extra else {}
    return tensors | scales
