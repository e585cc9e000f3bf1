"""The sending side of a transfer, without I/O."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from protocol.backoff import Backoff
from protocol.transfer_actions import Action, Ended, Say, SendChunk
from protocol.transfer_layout import chunk_count
from protocol.transfer_messages import MAXIMUM_CREDIT, Cancel, Done, Fail, Offer, Want

IDLE_SECONDS = 300.0


@dataclass
class TransferSender:
    """Offers content and sends the chunks that are asked for.

    Args:
        offer: What is offered.
        deadline: When to give up, on the clock of ``now``.
        insists: Whether the offer is repeated until it is answered; otherwise the receiver asked, and will ask again.
        backoff: Waits between offers.
    """

    offer: Offer
    deadline: float
    insists: bool = True
    backoff: Backoff = field(default_factory=Backoff)
    _queue: dict[int, SendChunk] = field(default_factory=dict)
    _due: float = 0.0
    _ended: bool = False

    def start(self, now: float) -> list[Action]:
        """Say the offer for the first time."""
        return self._say_offer(now)

    def hear(self, message: Want | Done | Fail | Cancel, now: float) -> list[Action]:
        """Take what the receiver says."""
        if self._ended:
            return []
        if isinstance(message, Want):
            return self._want(message, now)
        if isinstance(message, Done):
            return self._end(Ended("accepted"))
        if isinstance(message, Fail):
            return self._end(Ended(message.code, message.reason))
        return self._end(Ended("cancelled", message.reason))

    def next_chunk(self) -> SendChunk | None:
        """Return the next chunk to send, or None when nothing is asked for."""
        if not self._queue:
            return None
        return self._queue.pop(next(iter(self._queue)))

    def resize(self, chunk_bytes: int, now: float) -> list[Action]:
        """Offer again with another chunk size, as the broker takes no larger ones."""
        if self._ended or chunk_bytes == self.offer.chunk_bytes:
            return []
        self.offer = dataclasses.replace(self.offer, chunk_bytes=chunk_bytes)
        self._queue.clear()
        return self._say_offer(now)

    def tick(self, now: float) -> list[Action]:
        """Offer again, or give up, when it is time."""
        if self._ended or now < self.due:
            return []
        if now >= self.deadline:
            return self._end(Ended("expired", "the receiver did not have it in time"))
        if not self.insists:
            return self._end(Ended("cancelled", "the receiver asks for nothing any more"))
        return self._say_offer(now)

    def restarted(self, now: float) -> list[Action]:
        """Offer again: the connection was lost, and with it perhaps what was said and sent; the receiver asks for what it lacks."""
        self.backoff.succeeded()
        return [] if self._ended else self._say_offer(now)

    @property
    def due(self) -> float:
        """Return when ``tick`` has something to do."""
        return min(self._due, self.deadline)

    @property
    def waiting_chunks(self) -> int:
        """Return how many chunks are asked for and not sent."""
        return len(self._queue)

    def _want(self, want: Want, now: float) -> list[Action]:
        """Queue the chunks that are asked for; one that waits already is not queued twice."""
        if want.credit == 0 or want.chunk_bytes > self.offer.chunk_bytes:
            return self._say_offer(now)
        count = chunk_count(self.offer.size, want.chunk_bytes)
        for chunk in want.chunks():
            offset = chunk * want.chunk_bytes
            if chunk < count and len(self._queue) < MAXIMUM_CREDIT:
                self._queue.setdefault(offset, SendChunk(offset, min(want.chunk_bytes, self.offer.size - offset)))
        self.backoff.succeeded()
        self._due = now + (IDLE_SECONDS if not self.insists else 2 * self.backoff.wait())
        return []

    def _say_offer(self, now: float) -> list[Action]:
        """Say the offer, and wait for an answer."""
        self._due = now + (self.backoff.wait() if self.insists else IDLE_SECONDS)
        return [Say(self.offer)]

    def _end(self, ended: Ended) -> list[Action]:
        """Forget everything."""
        self._ended = True
        self._queue.clear()
        return [ended]
