"""Delivery end to end over a lossy pipe: messages that must arrive, their receipts, and content too big for one message.

A message counts as delivered when its receiver's signed receipt came; until then it stays in the outbox and is sent again.
A receiver answers a message that comes twice with the same receipt, from its inbox. Messages of the moment (presence, heads,
results, receipts, those of transfers) say the same however often they come, and pass no duplicate window.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protocol.delivery_events import Event, Fetched, NotFetched, Refusal, Settled
from protocol.dispatch import Dispatch
from protocol.envelope import MAXIMUM_SEALED_BYTES, Address, Envelope, Expectation
from protocol.fetching import Fetching
from protocol.inbox import Inbox
from protocol.inflow import Inflow
from protocol.keys import PrivateKey
from protocol.message_checks import ReasonCode
from protocol.messages import Message, Offer, Receipt
from protocol.outbox import Draft, Outbox, Place
from protocol.outflow import Outflow
from protocol.port import Port
from protocol.postman import Postman
from protocol.rate_limit import RateLimit
from protocol.reception import Reception, receipt_of
from protocol.resending import Resending
from protocol.topics import COORDINATOR, Routes
from protocol.transfer_layout import DEFAULT_CHUNK_BYTES
from protocol.transfer_limits import TransferLimits
from protocol.transfer_messages import Media
from protocol.transfer_source import FileSource
from protocol.transfers import Transfers

__all__ = ["Deliverer", "Event", "Fetched", "NotFetched", "Refusal", "Settled"]

TICK_SECONDS = 0.02  # resolution of everything that is due; with hundreds of transfers a look at all of them takes time
RECONNECT_SECONDS = 0.1
Verdict = tuple[ReasonCode, str]


@dataclass
class Deliverer:
    """One side's delivery; for one thread.

    Args:
        port: The connection.
        outbox: Messages that wait for receipts.
        inbox: Messages that were answered; the caller records each receipt in it and commits before ``post_receipt``.
        key: Own private key.
        address: Own federation, id, boot counter of this process, and digest of the bundle.
        expectation: What is accepted.
        routes: Topics to and from peers.
        folder: Where content that comes in pieces is put together.
        limits: What a peer may make this side keep.
        rate_limit: How many messages of a peer are looked at.
        admit: Gets a peer and its offer of a large message, and says why it is refused before it is fetched, or None.
        clock: Seconds since 1970, UTC.
        timer: Seconds of a clock that never goes back.
        draw: Random numbers from 0 to 1, for the waits.
    """

    port: Port
    outbox: Outbox
    inbox: Inbox
    key: PrivateKey
    address: Address
    expectation: Expectation
    routes: Routes
    folder: Path
    limits: TransferLimits = field(default_factory=TransferLimits)
    rate_limit: RateLimit = field(default_factory=RateLimit)
    admit: Callable[[str, Offer], Verdict | None] | None = None
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        """Put the parts together."""
        self._postman = Postman(self.port, self.key, self.address, self.routes, self.clock)
        inflow, outflow = Inflow(self.folder, self.limits, self.draw), Outflow(DEFAULT_CHUNK_BYTES, self.draw)
        inflow.sweep(self.clock())
        self._transfers = Transfers(self._postman, inflow, outflow, Fetching(self.draw))
        self._events: deque[Event] = deque()
        self._dispatch = Dispatch(self.outbox, self._postman, self._transfers, Resending(self.draw), self._events)
        self._reception = Reception(
            self._postman,
            self.inbox,
            self.expectation,
            self.rate_limit,
            self._transfers,
            self._dispatch,
            self._judge,
            self._events,
        )
        self._reconnects = self.port.reconnects
        self._next_tick = self.timer()

    def send(self, message: Message, peer: str = COORDINATOR, *, expires: float, droppable: bool = False) -> Place:
        """Make a message durable; while ``receive`` runs it is sent, again and again, until it is answered or expires.

        Args:
            message: The message.
            peer: Who it is for.
            expires: Seconds since 1970, UTC.
            droppable: Whether it may be dropped when the outbox is full.

        Raises:
            OversizeMessageError: Larger than a transfer of a message may be.
            OutboxFullError: There is no room for it.
        """
        return self.send_all([(message, peer)], expires=expires, droppable=droppable)[0]

    def send_all(self, messages: Sequence[tuple[Message, str]], *, expires: float, droppable: bool = False) -> list[Place]:
        """Make messages with their peers durable at once, in the time that one takes.

        Raises:
            OversizeMessageError: One is larger than a transfer of a message may be; none is kept.
            OutboxFullError: There is no room for all; none is kept.
        """
        times = (self.clock(), expires)

        def draft(message: Message, peer: str) -> Draft:
            return Draft(lambda place: self._postman.seal(message, place, times, MAXIMUM_SEALED_BYTES), peer, message.KIND)

        self._next_tick = self.timer()
        return self.outbox.put_all([draft(*pair) for pair in messages], expires=expires, droppable=droppable)

    def post(self, message: Message, topic: str, *, lifetime: float, retain: bool = False) -> bool:
        """Send a message of the moment once, and tell whether the broker took it."""
        return self._postman.post(message, topic, lifetime=lifetime, retain=retain)

    def answer(self, envelope: Envelope, code: ReasonCode, reason: str = "") -> Receipt:
        """Return the receipt of a message: record it in the inbox, commit, then ``post_receipt``."""
        return receipt_of(envelope.header, code, reason)

    def post_receipt(self, receipt: Receipt) -> bool:
        """Send a receipt; if it is lost the message comes again and is answered from the inbox."""
        return self._postman.say(receipt, receipt.device)

    def serve(self, path: Path, media: Media, *, round_number: int | None, expires: float) -> Offer:
        """Let every peer fetch a file by its SHA-256 until it expires; the file must not change meanwhile."""
        return self._transfers.outflow.serve(FileSource(path), media, round_number=round_number, expires=expires)

    def withdraw(self, transfer: str) -> None:
        """Serve something no longer."""
        self._transfers.outflow.withdraw(transfer)

    def fetch(self, transfer: str, peer: str = COORDINATOR, *, expires: float) -> None:
        """Ask a peer for content by its SHA-256; ``Fetched`` or ``NotFetched`` follows.

        A process that restarts calls it again, and the transfer goes on where it was.
        """
        self._next_tick = self.timer()
        self._transfers.fetch(peer, transfer, self.timer() + expires - self.clock())

    def receive(self, deadline_seconds: float) -> Event | None:
        """Do what is due (send, send again, chunks both ways) and return the next event, or None when none came in time."""
        until = self.timer() + deadline_seconds
        while True:
            busy = self._work()
            if self._events:
                return self._events.popleft()
            incoming = self.port.receive(0.0)
            now = self.timer()
            if incoming is None and not busy and now < until:
                incoming = self.port.receive(max(0.0, min(until, self._due()) - now))
            if incoming is not None:
                self._reception.take(incoming.topic, incoming.payload, now)
                self._reception.collect(now)
            elif now >= until:
                return None

    def close(self) -> None:
        """Keep what is unfinished for a later process."""
        self._transfers.inflow.close()

    def _work(self) -> bool:
        """Send what is due, and tell whether there may be more to send at once."""
        now = self.timer()
        if self.port.reconnects != self._reconnects:
            self._reconnects = self.port.reconnects
            self._dispatch.resending.restarted(now)
            self._transfers.restarted(now)
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            self._dispatch.tick(now)
            if self.port.connected:
                self._transfers.tick(now)
        more = self.port.connected and self._transfers.send_chunk()
        self._reception.collect(now)
        return more

    def _judge(self, peer: str, offer: Offer) -> Verdict | None:
        """Return why the caller does not want a large message."""
        return None if self.admit is None else self.admit(peer, offer)

    def _due(self) -> float:
        """Return when there is something to do, on the timer."""
        if not self.port.connected:
            return self.timer() + RECONNECT_SECONDS
        return max(self._next_tick, min(self._transfers.due, self._dispatch.due))
