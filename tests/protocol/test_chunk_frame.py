"""A frame says what it carries and where; one that was damaged is dropped."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.chunk_frame import CHUNK_FRAME_BYTES, ChunkFrame, is_chunk, short_name
from protocol.errors import MalformedMessageError
from protocol.transfer_layout import BLOCK_BYTES, CHUNK_SIZES

NAME = bytes(range(16))


@given(st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=2000))
def test_a_frame_comes_back(block: int, data: bytes) -> None:
    frame = ChunkFrame(NAME, block * BLOCK_BYTES, data)
    payload = frame.to_bytes()
    assert is_chunk(payload)
    assert len(payload) == CHUNK_FRAME_BYTES + len(data)
    assert ChunkFrame.from_bytes(payload) == frame


def test_the_layout_is_the_documented_one() -> None:
    payload = ChunkFrame(NAME, 3 * 512, b"data").to_bytes()
    assert payload[:24] == b"FTC1" + NAME + (3).to_bytes(4, "little")
    assert payload[28:] == b"data"


def test_any_flipped_bit_is_found() -> None:
    payload = ChunkFrame(NAME, 512, bytes(40)).to_bytes()
    for bit in range(8 * len(payload)):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedMessageError):
            ChunkFrame.from_bytes(bytes(damaged))


@pytest.mark.parametrize("length", [0, 1, CHUNK_FRAME_BYTES, CHUNK_FRAME_BYTES + CHUNK_SIZES[-1] + 1])
def test_an_impossible_length_is_refused(length: int) -> None:
    with pytest.raises(MalformedMessageError, match="length"):
        ChunkFrame.from_bytes(b"FTC1" + bytes(max(0, length - 4)) if length >= 4 else bytes(length))


def test_the_name_is_the_beginning_of_the_digest() -> None:
    assert short_name(NAME.hex() + "ff" * 16) == NAME
