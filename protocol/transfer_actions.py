"""What the two machines of a transfer ask their driver to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from protocol.message_checks import ReasonCode
from protocol.transfer_messages import TransferMessage


@dataclass(frozen=True)
class Say:
    """Sign and send this message to the peer."""

    message: TransferMessage


@dataclass(frozen=True)
class SendChunk:
    """Read this piece of the content and send it in a frame."""

    offset: int
    length: int


@dataclass(frozen=True)
class Write:
    """Write this piece into the store."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Verify:
    """Compute the SHA-256 of this group from the store, and report with ``verified`` whether it is the offer's."""

    group: int


@dataclass(frozen=True)
class Finish:
    """All groups are verified: compute the SHA-256 of the whole, put the content into its place, report with ``finished``."""


@dataclass(frozen=True)
class Ended:
    """Nothing more will come of this transfer.

    Attributes:
        code: ``accepted``, or why not.
        reason: The same in one sentence.
    """

    code: ReasonCode
    reason: str = ""


Action: TypeAlias = Say | Write | Verify | Finish | Ended
