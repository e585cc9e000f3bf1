"""Evil in tensors: the file's layout, and golden samples that are not the graphs'."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from protocol.tensors import encode_tensors
from tests.protocol.evil.drafts import GOLDEN, Changes, F, Kind, contents, pair

MORE = "tensors/more.safetensors"


def more(data: bytes) -> Changes:
    """Return a bundle with a further file of tensors."""
    return contents(MORE, data)


def layout(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


def one(offsets: str = "[0,4]", dtype: str = "F32", shape: str = "[1]", body: bytes = b"\0" * 4) -> Changes:
    """Return a file of one tensor."""
    return more(layout(f'{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}'.encode(), body))


def offsets(text: str, body: bytes = b"\0" * 4) -> Changes:
    return one(offsets=text, body=body)


def dtype(text: str) -> Changes:
    return one(dtype=text)


def shape(text: str) -> Changes:
    return one(shape=text)


def header(text: bytes) -> Changes:
    return more(layout(text, b"\0\0"))


def length(value: int) -> Changes:
    """Return a file that says how long its header is; the header has 60 bytes."""
    text = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}      '
    return more(struct.pack("<Q", value) + text + b"\0" * 4)


def two(second: str) -> Changes:
    """Return a file of two tensors of two bytes, the second at these places."""
    text = f'{{"a":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}},"b":{{"dtype":"U8","shape":[2],"data_offsets":{second}}}}}'
    return more(layout(text.encode(), b"\0" * 4))


def truths(byte: int) -> Changes:
    return one(dtype="BOOL", shape="[4]", body=bytes([0, 1, byte, 0]))


def many(count: int) -> Changes:
    return more(encode_tensors({f"t{number}": np.zeros(1, np.uint8) for number in range(count)}))


def notes(value: Any) -> Changes:
    """Return a file with metadata."""
    return more(layout(f'{{"__metadata__":{{"note":{value}}},"a":{{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}}}'.encode(), b"\0\0"))


def golden(change: Callable[[dict[str, np.ndarray]], object]) -> Changes:
    """Return other golden tensors."""
    tensors: dict[str, np.ndarray] = {"samples": np.full((2, 3), 0.5, np.float32), "logits": np.zeros((2, 2), np.float32)}
    change(tensors)
    return contents(GOLDEN, encode_tensors(tensors))


def tensor(name: str, value: np.ndarray | None) -> Changes:
    """Return other golden tensors: one of them replaced, added, or, with None, left as it is."""
    return golden(lambda tensors: None if value is None else tensors.update({name: value}))


def without(name: str | None) -> Changes:
    return golden(lambda tensors: tensors.pop(name or "", None))


def unlisted(absent: bool) -> Changes:
    """Return a bundle that brings no golden samples and lists none."""
    if not absent:
        return {}
    return {"files": lambda files: files.pop(GOLDEN)}


def of_rows(rows: int) -> Changes:
    return golden(lambda tensors: tensors.update(samples=np.full((rows, 3), 0.5, np.float32), logits=np.zeros((rows, 2), np.float32)))


FLOATS = np.zeros((2, 2), np.float32)
GOOD = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}'
HEADER = "malformed at header"

KINDS: dict[str, Kind] = {
    "a header of 2^60 bytes": pair(length, 2**60, 60, F, HEADER),
    "a header beyond the end": pair(length, 100, 60, F, HEADER),
    "a header of no bytes": pair(length, 0, 60, F, HEADER),
    "a header longer than it is": pair(length, 62, 60, F, "malformed"),
    "three bytes": pair(more, b"abc", layout(GOOD, b"\0\0"), F, HEADER),
    "a header that is no object": pair(header, b"[1,2]", GOOD, F, HEADER),
    "a header that is no text": pair(header, b"\xff\xfe{}", GOOD, F, "UTF-8 JSON"),
    "a name of a tensor twice": pair(header, GOOD.replace(b'"b"', b'"a"'), GOOD, F, "a repeated key"),
    "a further field of a tensor": pair(
        header, GOOD.replace(b'"U8",', b'"U8","path":"/etc/passwd",', 1), GOOD, F, "'path', which is not known"
    ),
    "offsets beyond the end": pair(offsets, "[0,400]", "[0,4]", F, r"got \[0, 400\]"),
    "offsets that go backwards": pair(offsets, "[4,0]", "[0,4]", F, r"got \[4, 0\]"),
    "negative offsets": pair(offsets, "[-4,0]", "[0,4]", F, r"got \[-4, 0\]"),
    "offsets with a fraction": pair(offsets, "[0,4.0]", "[0,4]", F, "expected int"),
    "three offsets": pair(offsets, "[0,4,8]", "[0,4]", F, r"got \[0, 4, 8\]"),
    "a gap before the values": pair(offsets, ("[4,8]", b"\0" * 8), ("[0,4]", b"\0" * 4), F, r"got \[4, 8\]"),
    "bytes after the values": pair(offsets, ("[0,4]", b"\0" * 8), ("[0,4]", b"\0" * 4), F, "expected 4 bytes, got 8"),
    "values cut short": pair(offsets, ("[0,4]", b"\0" * 3), ("[0,4]", b"\0" * 4), F, "expected 4 bytes, got 3"),
    "tensors that overlap": pair(two, "[1,3]", "[2,4]", F, r"expected \[2, 4\], got \[1, 3\]"),
    "a gap between tensors": pair(two, "[3,5]", "[2,4]", F, r"expected \[2, 4\], got \[3, 5\]"),
    "sizes whose product overflows": pair(shape, "[4294967296,4294967296]", "[1]", F, "73786976294838206464"),
    "a negative size of a tensor": pair(shape, "[-1]", "[1]", F, "at most 8 positive sizes"),
    "an empty tensor": pair(shape, "[0]", "[1]", F, "at most 8 positive sizes"),
    "a tensor of nine axes": pair(shape, "[1,1,1,1,1,1,1,1,1]", "[1,1,1,1,1,1,1,1]", F, "at most 8 positive sizes"),
    "another size than its bytes": pair(shape, "[2]", "[1]", F, r"expected \[0, 8\]"),
    "a dtype nobody knows": pair(dtype, "F8_E4M3", "F32", F, "got 'F8_E4M3'"),
    "a dtype that lies": pair(dtype, "F64", "I32", F, r"expected \[0, 8\]"),
    "a truth that is neither": pair(truths, 2, 1, F, "bytes 0 or 1"),
    "more tensors than a bundle has": pair(many, 4097, 1000, F, "malformed|4096"),
    "metadata that is no text": pair(notes, "1", '"1"', F, "an object of texts"),
    "a pickle in the place of tensors": pair(more, b"\x80\x04\x95" + b"\0" * 20, layout(GOOD, b"\0\0"), F, HEADER),
    "an archive in the place of tensors": pair(more, b"PK\x03\x04" + b"\0" * 40, layout(GOOD, b"\0\0"), F, HEADER),
    "no golden samples": pair(unlisted, True, False, F, "brings no golden samples"),
    "golden samples without answers": pair(without, "logits", None, F, "golden tensors are others"),
    "golden tensors of another bundle": pair(tensor, ("embedding", FLOATS), ("embedding", None), F, "golden tensors are others"),
    "golden samples of another shape": pair(
        tensor, ("samples", np.zeros((2, 4), np.float32)), ("samples", np.zeros((2, 3), np.float32)), F, "golden samples do not fit"
    ),
    "golden samples of another dtype": pair(
        tensor, ("samples", np.zeros((2, 3))), ("samples", np.zeros((2, 3), np.float32)), F, "golden samples do not fit"
    ),
    "golden answers of other classes": pair(
        tensor, ("logits", np.zeros((2, 5), np.float32)), ("logits", FLOATS), F, "golden logits do not fit"
    ),
    "golden answers to other samples": pair(
        tensor, ("logits", np.zeros((3, 2), np.float32)), ("logits", FLOATS), F, "golden logits do not fit"
    ),
    "golden answers that are no numbers": pair(tensor, ("logits", FLOATS * np.nan), ("logits", FLOATS), F, "golden logits are not finite"),
    "golden samples that are infinite": pair(
        tensor, ("samples", np.full((2, 3), np.inf, np.float32)), ("samples", None), F, "golden samples are not finite"
    ),
    "golden samples outside the raw range": pair(
        tensor, ("samples", np.full((2, 3), 9, np.float32)), ("samples", None), F, "leave the raw range"
    ),
    "a million golden samples": pair(of_rows, 5000, 1000, F, "no golden samples, or too many"),
}
