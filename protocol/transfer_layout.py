"""How content is cut: blocks, chunks and groups. Everything here is arithmetic on sizes.

A *block* is the unit in which a receiver remembers what it has, and of every offset. A *chunk* is what one frame carries:
a power of two of bytes, agreed anew whenever a broker turns out to take less. A *group* is what has a digest of its own
in the signed offer: 1 MiB, and more for content beyond 512 MiB, so that an offer always fits one message.
"""

from __future__ import annotations

BLOCK_BYTES = 512
CHUNK_SIZES = tuple(BLOCK_BYTES << power for power in range(10))  # 512 bytes to 256 KiB
DEFAULT_CHUNK_BYTES = 32 * 1024
GROUP_BYTES = 1024 * 1024
MAXIMUM_GROUPS = 512
MAXIMUM_TRANSFER_BYTES = 1024 * GROUP_BYTES
DIGEST_BYTES = 32


def group_bytes(size: int) -> int:
    """Return the size of the groups of content of a size; the last group may be shorter."""
    return GROUP_BYTES if size <= MAXIMUM_GROUPS * GROUP_BYTES else 2 * GROUP_BYTES


def group_count(size: int) -> int:
    """Return how many groups content of a size has."""
    return -(-size // group_bytes(size))


def block_count(size: int) -> int:
    """Return how many blocks content of a size has."""
    return -(-size // BLOCK_BYTES)


def chunk_count(size: int, chunk_bytes: int) -> int:
    """Return how many chunks content of a size has."""
    return -(-size // chunk_bytes)


def largest_chunk(payload_bytes: int) -> int | None:
    """Return the largest chunk, up to the default, for which there is room; None when there is none for the smallest."""
    fitting = [size for size in CHUNK_SIZES if size <= min(payload_bytes, DEFAULT_CHUNK_BYTES)]
    return fitting[-1] if fitting else None
