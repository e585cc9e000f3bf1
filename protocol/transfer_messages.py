"""The signed messages of a transfer: OFFER, WANT, DONE, FAIL and CANCEL; the chunks between them are raw frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.message_checks import MAXIMUM_REASON, ReasonCode, require, require_count, require_digest, require_text, require_time
from protocol.transfer_layout import CHUNK_SIZES, DIGEST_BYTES, MAXIMUM_TRANSFER_BYTES, group_count

Media: TypeAlias = Literal["message", "bundle", "state"]
MAXIMUM_CREDIT = 64  # chunks on their way at once
WANT_CHUNKS = 1024  # a bitmap reaches this far


def no_digests() -> NDArray[np.uint8]:
    """Return the digests of content in a single group, whose digest is the name of the transfer."""
    return np.zeros((0, DIGEST_BYTES), np.uint8)


@dataclass(frozen=True, eq=False)
class Offer:
    """What can be fetched, and by what it is recognised.

    The header of an offer of media ``message`` carries boot counter and sequence number of the message inside, so that a
    receiver which has answered that message answers again without fetching it.

    Attributes:
        transfer: SHA-256 of the whole content.
        size: Its size in bytes.
        chunk_bytes: Largest piece that the sender will send.
        media: ``message`` (a sealed message), ``bundle`` (a packed bundle) or ``state`` (tensors).
        round: Round that it belongs to, or None.
        expires: Seconds since 1970, UTC; the sender forgets it then.
        groups: One SHA-256 for each group of bytes, (G, 32) uint8; none when there is one group.
    """

    KIND: ClassVar[str] = "offer/1"

    transfer: str
    size: int
    chunk_bytes: int
    media: Media
    round: int | None
    expires: float
    groups: NDArray[np.uint8] = field(default_factory=no_digests)

    def __post_init__(self) -> None:
        """Refuse an offer that cannot be."""
        require_digest("name of a transfer", self.transfer)
        require_count("size of a transfer", self.size, 1, MAXIMUM_TRANSFER_BYTES)
        require(self.chunk_bytes in CHUNK_SIZES, "the chunk size of an offer is impossible", self.chunk_bytes, CHUNK_SIZES)
        require_time("end of an offer", self.expires)
        require_count("round number", self.round or 0)
        count = group_count(self.size)
        expected = (count if count > 1 else 0, DIGEST_BYTES)
        require(self.groups.shape == expected, "the group digests of an offer do not fit its size", self.groups.shape, expected)


@dataclass(frozen=True)
class Want:
    """Which chunks the receiver asks for now; credit 0 asks for the offer itself.

    Attributes:
        transfer: SHA-256 of the whole content.
        credit: How many chunks may be on their way at once.
        chunk_bytes: Size of the chunks that are meant.
        base: Index of the first chunk in the bitmap.
        bitmap: One bit for each chunk from ``base`` on, lowest bit first, in hexadecimal.
    """

    KIND: ClassVar[str] = "want/1"

    transfer: str
    credit: int
    chunk_bytes: int
    base: int
    bitmap: str

    def __post_init__(self) -> None:
        """Refuse a request that cannot be."""
        require_digest("name of a transfer", self.transfer)
        require_count("credit", self.credit, 0, MAXIMUM_CREDIT)
        require(self.chunk_bytes in CHUNK_SIZES, "the chunk size of a request is impossible", self.chunk_bytes, CHUNK_SIZES)
        require_count("first chunk", self.base, 0, MAXIMUM_TRANSFER_BYTES // self.chunk_bytes)
        digits = set(self.bitmap) <= set("0123456789abcdef") and len(self.bitmap) % 2 == 0
        require(digits and len(self.bitmap) * 4 <= WANT_CHUNKS, "the bitmap of a request is malformed", self.bitmap[:80])
        require((self.credit == 0) == (self.bitmap == ""), "a request asks for chunks without credit, or for none with credit")

    @classmethod
    def of_offer(cls, transfer: str) -> Want:
        """Return the request to be offered something whose name is known."""
        return cls(transfer, 0, CHUNK_SIZES[0], 0, "")

    @classmethod
    def of_chunks(cls, transfer: str, credit: int, chunk_bytes: int, chunks: list[int]) -> Want:
        """Return the request for some chunks; those beyond the reach of the bitmap are left out."""
        base = min(chunks)
        bits = sum(1 << (chunk - base) for chunk in set(chunks) if chunk - base < WANT_CHUNKS)
        return cls(transfer, credit, chunk_bytes, base, bits.to_bytes((bits.bit_length() + 7) // 8, "little").hex())

    def chunks(self) -> list[int]:
        """Return the indices of the chunks that are asked for, in order."""
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(self.bitmap), np.uint8), bitorder="little")
        return [self.base + int(place) for place in np.flatnonzero(bits)]


@dataclass(frozen=True)
class Done:
    """The receiver has verified the whole content."""

    KIND: ClassVar[str] = "done/1"

    transfer: str

    def __post_init__(self) -> None:
        """Refuse a malformed name."""
        require_digest("name of a transfer", self.transfer)


@dataclass(frozen=True)
class Fail:
    """The receiver, or a sender that is asked for something, will not go on with a transfer.

    Attributes:
        transfer: SHA-256 of the whole content.
        code: Why.
        reason: The same in one sentence.
    """

    KIND: ClassVar[str] = "fail/1"

    transfer: str
    code: ReasonCode
    reason: str

    def __post_init__(self) -> None:
        """Refuse malformed fields."""
        require_digest("name of a transfer", self.transfer)
        require_text("reason", self.reason, MAXIMUM_REASON)


@dataclass(frozen=True)
class Cancel:
    """Either side gives up a transfer."""

    KIND: ClassVar[str] = "cancel/1"

    transfer: str
    reason: str

    def __post_init__(self) -> None:
        """Refuse malformed fields."""
        require_digest("name of a transfer", self.transfer)
        require_text("reason", self.reason, MAXIMUM_REASON)


TransferMessage: TypeAlias = Offer | Want | Done | Fail | Cancel
