"""Samples as JSON lines, for programs that speak no numpy: one sample a line, as nested lists or with a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from edge_runtime.samples import SampleGate
from edge_runtime.sources import NamedBatch, grouped
from protocol.errors import InputError
from protocol.manifest import RawInput
from protocol.schema import SchemaError, parse_json

MAXIMUM_LINE_BYTES = 16 * 1024 * 1024
NAME, VALUES = "sample", "values"


def json_batches(stream: BinaryIO, raw: RawInput) -> Iterator[NamedBatch]:
    """Yield checked samples from lines such as ``[[0, 1], [2, 3]]`` or ``{"sample": "a.png", "values": [[0, 1], [2, 3]]}``.

    Args:
        stream: Lines in UTF-8; empty ones are skipped.
        raw: What the bundle expects.

    Raises:
        InputError: A line that is no such sample; its number is named.
    """
    return grouped(_samples(stream, SampleGate(raw)))


def _samples(stream: BinaryIO, gate: SampleGate) -> Iterator[NamedBatch]:
    """Yield one sample for each line."""
    number = 0
    while line := stream.readline(MAXIMUM_LINE_BYTES + 1):
        number += 1
        if len(line) > MAXIMUM_LINE_BYTES:
            raise InputError(f"line {number} is too long", expected=f"at most {MAXIMUM_LINE_BYTES} bytes")
        if line.strip():
            yield _sample(line, number, gate)


def _sample(line: bytes, number: int, gate: SampleGate) -> NamedBatch:
    """Return the sample of one line; without a name it is called by the line's number, from 0."""
    try:
        content = parse_json(line)
        named = isinstance(content, dict)
        if named and content.keys() != {NAME, VALUES}:
            raise SchemaError("line", f"the keys {NAME} and {VALUES}", ", ".join(content) or "none")
        values = np.asarray(content[VALUES] if named else content)
    except (SchemaError, ValueError) as fault:
        raise InputError(f"line {number} is no sample", expected="nested lists of numbers", got=str(fault)[:120]) from fault
    name = str(content[NAME]) if named else str(number - 1)
    return NamedBatch([name], gate.accept(values[None]))
