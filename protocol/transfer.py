"""Both sides of a transfer as state machines without I/O: events in, actions out. See the classes for the rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from protocol.transfer_messages import TransferMessage


@dataclass(frozen=True)
class Say:
    """Sign and send this message to the peer."""

    message: TransferMessage


@dataclass(frozen=True)
class SendChunk:
    """Read this piece of the content and send it as a chunk frame."""

    offset: int
    length: int


@dataclass(frozen=True)
class Write:
    """Write this piece into the store."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Verify:
    """Compute the SHA-256 of this group from the store, and report it with ``verified``."""

    group: int


@dataclass(frozen=True)
class Finish:
    """All groups are verified: put the content into its place, and report it with ``finished``."""


Action: TypeAlias = Say | SendChunk | Write | Verify | Finish
