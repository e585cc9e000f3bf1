"""What a coordinator says to everybody, retained at the broker: the channel's head, the latest result. A broker may forget it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from protocol.delivery import Deliverer
from protocol.fleet_messages import ChannelHead
from protocol.messages import Message
from protocol.topics import Topics

HEAD_LIFETIME_SECONDS = 86_400.0
FIRST_REPEAT_SECONDS, LONGEST_REPEAT_SECONDS = 5.0, 300.0  # a broker may have acknowledged and lost what was said


@dataclass(frozen=True)
class Offered:
    """The bundle on the channel.

    Attributes:
        digest: Its digest.
        version: Its version.
        transfer: SHA-256 of the packed bundle.
        size: Its size in bytes.
    """

    digest: str
    version: int
    transfer: str
    size: int


@dataclass
class Broadcast:
    """Retained messages, said again when they change, when the connection was lost, and after ever longer waits.

    Args:
        deliverer: The coordinator's delivery.
        topics: The federation's topics.
        offered: The bundle on the channel.
        clock: Seconds since 1970, UTC.
    """

    deliverer: Deliverer
    topics: Topics
    offered: Offered
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        """Begin with nothing said."""
        self._head: tuple[int | None, str] | None = None
        self._results: dict[str, Message] = {}
        self._unsaid: set[str] = set()
        self._connections, self._again, self._wait = self.deliverer.port.reconnects, 0.0, FIRST_REPEAT_SECONDS

    def head(self, number: int | None, status: Literal["open", "paused", "closed"]) -> None:
        """Say which round is open."""
        if self._head != (number, status):
            self._head = (number, status)
            self._unsaid.add(self.topics.channel)

    def result(self, message: Message, topic: str) -> None:
        """Say what a round came to."""
        self._results[topic] = message
        self._unsaid.add(topic)

    def work(self) -> None:
        """Say what is to be said now."""
        now = self.clock()
        if self._unsaid or self.deliverer.port.reconnects != self._connections:
            self._wait, self._again = FIRST_REPEAT_SECONDS, now + FIRST_REPEAT_SECONDS
        elif now >= self._again:
            self._wait = min(2 * self._wait, LONGEST_REPEAT_SECONDS)
            self._again = now + self._wait
        else:
            return
        if not self._unsaid:
            self._connections = self.deliverer.port.reconnects
            self._unsaid |= self._results.keys() | ({self.topics.channel} if self._head is not None else set())
        for topic in sorted(self._unsaid):
            message = self._results.get(topic) or self._head_message(now)
            if self.deliverer.post(message, topic, lifetime=HEAD_LIFETIME_SECONDS, retain=True):
                self._unsaid.discard(topic)

    def _head_message(self, now: float) -> ChannelHead:
        """Return the channel's head."""
        assert self._head is not None  # noqa: S101  # it is said only after it was set
        offered = self.offered
        number, status = self._head
        return ChannelHead(offered.digest, offered.version, offered.transfer, offered.size, now, number, status)  # type: ignore[arg-type]
