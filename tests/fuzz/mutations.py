"""Seeded damage to good inputs: what a broken network, a careless sender or a hostile one would make of them."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

VALUE = re.compile(rb':("[^"]*"|[-+.\deE]+|null|true|false)')
VALUES = (
    b"null",
    b"true",
    b"0",
    b"-1",
    b"1.5",
    b"1e308",
    b"9007199254740993",
    b'""',
    b'"online"',
    b'"' + b"0" * 64 + b'"',
    b"[]",
    b"{}",
    b"[1,2]",
)
KEY = re.compile(rb'"(\w+)":')
INTERESTING = (b"\0", b"\xff", b"{", b"}", b"[]", b'"', b"null", b"1e999", b"-1", b"9" * 20, b"true", b'{"a":', b"\xed\xa0\x80", b"NaN")


def mutate(generator: random.Random, corpus: list[bytes]) -> bytes:
    """Return one of the inputs with one to four kinds of damage."""
    data = bytearray(generator.choice(corpus))
    for _ in range(generator.randint(1, 4)):
        place = generator.randrange(len(data) + 1)
        kind = generator.randrange(12)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << generator.randrange(8)
        elif kind == 1 and data:
            data[place % len(data)] = generator.randrange(256)
        elif kind == 2:
            del data[place : place + generator.randint(1, 16)]
        elif kind == 3:
            data[place:place] = generator.choice(INTERESTING)
        elif kind == 4:
            data[place:place] = data[place : place + generator.randint(1, 64)]
        elif kind == 5:
            other = generator.choice(corpus)
            data[place:] = other[generator.randrange(len(other) + 1) :]
        elif kind == 6:
            data[place : place + 4] = generator.choice((0, 1, 2**16, 2**31, 2**32 - 1)).to_bytes(4, "little")
        elif kind == 7:
            data[place:] = b""
        else:
            _replace(generator, data, *((KEY, [b"round", b"size", b"data", b""]) if kind == 8 else (VALUE, VALUES)))
    return bytes(data)


def _replace(generator: random.Random, data: bytearray, pattern: re.Pattern[bytes], values: Sequence[bytes]) -> None:
    """Put another value into the place of one of JSON, so that what comes after the parser has something to do."""
    found = list(pattern.finditer(data))
    if found:
        start, end = generator.choice(found).span(1)
        data[start:end] = generator.choice(values)
