"""Messages that must arrive, on disk until their receipt came.

Every number is used once, whatever crashes: a message and its number become durable together, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from protocol.errors import TransportError

MOST_MESSAGES = 512
MOST_BYTES = 256 * 1024 * 1024
SPAN = 1000  # no number is sent this far above the oldest one waiting: the receiver's window is 1024 wide


class OutboxFullError(TransportError):
    """Nothing in the outbox may be dropped, and there is no room for another message."""


@dataclass(frozen=True, order=True)
class Place:
    """What names a message of a sender for ever.

    Attributes:
        boot: Boot counter of the process that made the outbox; it stays while the outbox does.
        sequence: Grows by one with every message, over restarts.
    """

    boot: int
    sequence: int


@dataclass(frozen=True)
class Waiting:
    """A message that waits for its receipt; its bytes stay on disk.

    Attributes:
        place: Its name.
        peer: Who it is for.
        kind: Kind of the message.
        size: Bytes of its payload.
        expires: Seconds since 1970, UTC; it is dropped then.
        droppable: Whether it may be dropped when room is needed, as a later report says the same better.
    """

    place: Place
    peer: str
    kind: str
    size: int
    expires: float
    droppable: bool


class Outbox:
    """A durable queue of sealed messages.

    Args:
        path: SQLite file; made when absent.
        boot: Boot counter of this process, for a new outbox; ignored for one that exists.
        most_messages: Bound of the count.
        most_bytes: Bound of the bytes.
    """

    def __init__(self, path: Path, boot: int, most_messages: int = MOST_MESSAGES, most_bytes: int = MOST_BYTES) -> None:
        raise NotImplementedError

    def put(self, seal: Callable[[Place], bytes], *, peer: str, kind: str, expires: float, droppable: bool = False) -> Place:
        """Make a message durable under the next number.

        Args:
            seal: Gives the payload for a place; called once, before anything is written.
            peer: Who it is for.
            kind: Kind of the message.
            expires: Seconds since 1970, UTC.
            droppable: Whether it may be dropped when room is needed.

        Raises:
            OutboxFullError: There is no room.
        """
        raise NotImplementedError

    def pending(self, now: float) -> list[Waiting]:
        """Return what may be sent, the oldest first; what has expired is dropped."""
        raise NotImplementedError

    def payload(self, place: Place) -> bytes:
        """Return the bytes of a waiting message."""
        raise NotImplementedError

    def settle(self, place: Place) -> bool:
        """Forget a message that was answered, and tell whether it was waiting."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        raise NotImplementedError
