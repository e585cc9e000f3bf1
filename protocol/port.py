"""What delivery needs of a connection to a broker; protocol.mqtt.Connection has it, and tests have one in memory."""

from __future__ import annotations

from typing import Protocol


class Incoming(Protocol):
    """One payload that a broker delivered."""

    @property
    def topic(self) -> str:
        """Return where it was published."""

    @property
    def payload(self) -> bytes:
        """Return its bytes."""


class Port(Protocol):
    """A lossy pipe: what goes in may come out once, twice, late, or never."""

    @property
    def maximum_payload(self) -> int:
        """Return the most bytes of one payload that the broker is known to take; it may shrink."""

    @property
    def window(self) -> int:
        """Return how many messages may be unacknowledged at once."""

    @property
    def connected(self) -> bool:
        """Return whether there is a connection now."""

    @property
    def reconnects(self) -> int:
        """Return how many connections there have been; a change says that messages on their way may be lost."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, deadline_seconds: float = 10.0) -> None:
        """Hand one payload to the broker.

        Raises:
            OversizeMessageError: It is larger than ``maximum_payload``, which may have shrunk just now.
            TransportError: The broker did not take it before the deadline.
        """

    def publish_nowait(self, topic: str, payload: bytes, *, deadline_seconds: float = 10.0) -> None:
        """Hand one payload over without waiting for the broker's answer, only for room in its window.

        What becomes of it nobody tells: whoever needs to know waits for the answer of the receiver.

        Raises:
            OversizeMessageError: It is larger than ``maximum_payload``, which may have shrunk just now.
            TransportError: There is no connection, or no room came before the deadline.
        """

    def receive(self, deadline_seconds: float) -> Incoming | None:
        """Return the next payload, or None when none came in time."""
