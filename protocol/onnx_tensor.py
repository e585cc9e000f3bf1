"""What a tensor in an ONNX file says of itself, read with the standard library alone and held to its word."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field

from protocol.errors import UnsafeGraphError
from protocol.protobuf import fields, integer, integers, message, text

DIMS, DATA_TYPE, FLOATS, INT32S, STRINGS, INT64S, NAME, RAW, DOUBLES, UINT64S = 1, 2, 4, 5, 6, 7, 8, 9, 10, 11
STRING_TYPE = 8
DTYPES = {1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64"}
ITEM_BYTES = {"float32": 4, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "bool": 1, "float16": 2, "float64": 8}
MAXIMUM_AXES = 16


@dataclass
class TensorFacts:
    """What a tensor of a model says of itself.

    Attributes:
        name: Its name; nothing for one inside an attribute.
        dims: Its sizes.
        data_type: ONNX number of its dtype.
        raw: Its values as little-endian bytes, if written so.
        integers: Its values, if written as a list of integers.
        values: Number of values written otherwise.
    """

    name: str = ""
    dims: list[int] = field(default_factory=list)
    data_type: int = 0
    raw: memoryview | None = None
    integers: list[int] = field(default_factory=list)
    values: int = 0

    def sizes(self) -> list[int]:
        """Return the values of an int64 tensor."""
        return self.integers if self.raw is None else [number for (number,) in struct.iter_unpack("<q", self.raw)]


def read_tensor(data: memoryview) -> TensorFacts:
    """Return the facts of a tensor whose values are all there.

    Raises:
        UnsafeGraphError: Text, a dtype that no graph here has, or another number of values than its sizes say.
    """
    facts = TensorFacts()
    for number, value in fields(data):
        if number == DIMS:
            facts.dims += integers(value)
        elif number == DATA_TYPE:
            facts.data_type = integer(value)
        elif number == NAME:
            facts.name = text(value)
        elif number == RAW:
            facts.raw = message(value)
        elif number in (INT32S, INT64S, UINT64S):
            facts.integers += integers(value)
        elif number in (FLOATS, DOUBLES):
            facts.values += len(message(value)) // (4 if number == FLOATS else 8) if not isinstance(value, int) else 1
    _check(facts)
    return facts


def _check(facts: TensorFacts) -> None:
    """Refuse a tensor that claims other values than it brings."""
    where = f"the tensor {facts.name!r}"
    if facts.data_type not in DTYPES:
        kind = "text" if facts.data_type == STRING_TYPE else f"type number {facts.data_type}"
        raise UnsafeGraphError(f"{where} is of no accepted dtype", expected=", ".join(DTYPES.values()), got=kind)
    if len(facts.dims) > MAXIMUM_AXES or any(size < 0 for size in facts.dims):
        raise UnsafeGraphError(f"{where} has impossible sizes", expected=f"at most {MAXIMUM_AXES} axes, none below 0", got=facts.dims[:20])
    itemsize = ITEM_BYTES[DTYPES[facts.data_type]]
    given = len(facts.integers) + facts.values if facts.raw is None else len(facts.raw) / itemsize
    if given != math.prod(facts.dims):
        raise UnsafeGraphError(f"{where} does not hold what its sizes say", expected=f"{math.prod(facts.dims)} values", got=f"{given:g}")
