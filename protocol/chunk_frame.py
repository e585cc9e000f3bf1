"""One piece of a transfer as a raw frame: magic, transfer, offset, CRC-32, data.

A frame is not signed: the digests in the signed offer cover what it brings, and a piece that does not fit them is thrown
away. The checksum only finds accidents early. The offset counts blocks of 512 bytes, so a frame means the same whatever
chunk size the two sides agree on later.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from protocol.errors import MalformedMessageError
from protocol.transfer_layout import BLOCK_BYTES, CHUNK_SIZES

MAGIC = b"FTC1"
NAME_BYTES = 16
HEAD = struct.Struct("<4s16sII")
CHUNK_FRAME_BYTES = HEAD.size  # beside the data


@dataclass(frozen=True)
class ChunkFrame:
    """One piece.

    Attributes:
        name: First 16 bytes of the transfer's SHA-256.
        offset: Where the data belongs, in bytes; a multiple of 512.
        data: 1 byte to 256 KiB.
    """

    name: bytes
    offset: int
    data: bytes

    def to_bytes(self) -> bytes:
        """Return the frame."""
        block = self.offset // BLOCK_BYTES
        return HEAD.pack(MAGIC, self.name, block, _checksum(self.name, block, self.data)) + self.data

    @classmethod
    def from_bytes(cls, payload: bytes) -> ChunkFrame:
        """Read a frame.

        Raises:
            MalformedMessageError: Another length, magic or checksum.
        """
        if not HEAD.size < len(payload) <= HEAD.size + CHUNK_SIZES[-1]:
            limit = f"{HEAD.size + 1} to {HEAD.size + CHUNK_SIZES[-1]} bytes"
            raise MalformedMessageError("a chunk has an impossible length", expected=limit, got=len(payload))
        magic, name, block, checksum = HEAD.unpack_from(payload)
        data = payload[HEAD.size :]
        if magic != MAGIC:
            raise MalformedMessageError("a payload is no chunk", expected=f"the magic {MAGIC!r}", got=repr(magic))
        if checksum != _checksum(name, block, data):
            raise MalformedMessageError(
                "a chunk was damaged on its way", expected=f"{_checksum(name, block, data):08x}", got=f"{checksum:08x}"
            )
        return cls(name, block * BLOCK_BYTES, data)


def is_chunk(payload: bytes) -> bool:
    """Tell whether a payload claims to be a chunk."""
    return payload[: len(MAGIC)] == MAGIC


def short_name(transfer: str) -> bytes:
    """Return how a transfer is called in its chunks."""
    return bytes.fromhex(transfer)[:NAME_BYTES]


def _checksum(name: bytes, block: int, data: bytes) -> int:
    """Return the CRC-32 of everything that a frame says."""
    return zlib.crc32(data, zlib.crc32(struct.pack("<16sI", name, block)))
