"""Delivery end to end over a lossy pipe: messages that must arrive, their receipts, and content too big for one message.

A message counts as delivered when its receiver's signed receipt came; until then it stays in the outbox and is sent again.
A receiver answers a message that comes twice with the same receipt, from its inbox. Messages of the moment (presence, heads,
results, receipts, those of transfers) say the same however often they come, and pass no duplicate window.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from protocol.chunk_frame import is_chunk
from protocol.delivery_events import Event, Fetched, NotFetched, Refusal, Settled
from protocol.envelope import MAXIMUM_MESSAGE_BYTES, MAXIMUM_SEALED_BYTES, Address, Envelope, Expectation, Header, verify
from protocol.errors import FedtailorError, MessageError, NotAllowedError, StaleMessageError
from protocol.fetching import Fetching
from protocol.inbox import Inbox
from protocol.inflow import Inflow
from protocol.keys import PrivateKey
from protocol.message_checks import MAXIMUM_REASON, TRANSIENT, ReasonCode
from protocol.messages import Cancel, ChannelHead, Done, Fail, GlobalPrototypes, Message, Offer, Presence, Receipt, RoundResult, Want
from protocol.outbox import Draft, Outbox, Place, Waiting
from protocol.outflow import Outflow, Sent
from protocol.port import Port
from protocol.postman import Postman
from protocol.rate_limit import RateLimit
from protocol.reasons import reason_code
from protocol.resending import Resending
from protocol.topics import COORDINATOR, Routes
from protocol.transfer_layout import DEFAULT_CHUNK_BYTES
from protocol.transfer_limits import TransferLimits
from protocol.transfer_messages import Media
from protocol.transfer_source import BytesSource, FileSource
from protocol.transfers import Transfers

__all__ = ["Deliverer", "Event", "Fetched", "NotFetched", "Refusal", "Settled"]

MOST_UNANSWERED = 16
SPARE = 4  # of the broker's window, for messages of the moment
OF_THE_MOMENT = frozenset(
    kind.KIND for kind in (Receipt, Offer, Want, Done, Fail, Cancel, Presence, ChannelHead, RoundResult, GlobalPrototypes)
)
TICK_SECONDS = 0.02  # resolution of everything that is due; with hundreds of transfers a look at all of them takes time
RECONNECT_SECONDS = 0.1
TURN_SECONDS = 0.25  # until a large message that waits for others to be done is looked at again
LOGGER = logging.getLogger(__name__)
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
        self._resending = Resending(self.draw)
        self._events: deque[Event] = deque()
        self._reconnects = self.port.reconnects
        self._next_tick = self.timer()
        # A receipt is matched with a message that waits, so it may come from a coordinator with a newer bundle.
        free = self.expectation.bundle_free | {Receipt.KIND}
        self._expectation = replace(self.expectation, bundle_free=free)

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
        return _receipt(envelope.header, code, reason)

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
                self._take(incoming.topic, incoming.payload)
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
            self._resending.restarted(now)
            self._transfers.restarted(now)
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            self._tick(now)
        more = self.port.connected and self._transfers.send_chunk()
        self._collect()
        return more

    def _tick(self, now: float) -> None:
        """Do what depends on the time."""
        for waiting in self.outbox.expired(self.clock()):
            self._settle(waiting.place, None)
        if self.port.connected:
            for waiting in self._resending.due(self.outbox.pending(self.clock()), self._window, now):
                self._attempt(waiting, now)
            self._transfers.tick(now)

    def _attempt(self, waiting: Waiting, now: float) -> None:
        """Send a waiting message, or offer it when it is too large for one payload."""
        outflow = self._transfers.outflow
        if waiting.size <= min(MAXIMUM_MESSAGE_BYTES, self.port.maximum_payload):
            self._resending.tried(waiting.place, now)
            self._postman.hand_over(self.routes.topic_to(waiting.peer), self.outbox.payload(waiting.place))
        elif outflow.is_pressed(waiting.place):
            self._resending.tried(waiting.place, now)  # the transfer repeats its offer by itself
        elif not outflow.has_room(waiting.peer):
            self._resending.postpone(waiting.place, now + TURN_SECONDS)
        else:
            self._resending.tried(waiting.place, now)
            source, deadline = BytesSource(self.outbox.payload(waiting.place)), now + waiting.expires - self.clock()
            said = outflow.press(waiting.peer, source, expires=waiting.expires, deadline=deadline, tag=waiting.place, now=now)
            self._transfers.take_out(said)

    def _take(self, topic: str, payload: bytes) -> None:
        """Take one payload from the wire; whatever is wrong with it, delivery goes on."""
        peer = self.routes.peer_of(topic)
        try:
            if peer is None:
                raise NotAllowedError("nothing is expected on this topic", got=repr(topic[:200]))
            if is_chunk(payload):
                self._transfers.chunk(peer, payload, self.timer())
                self._collect()
            elif self.rate_limit.allows(peer, self.timer()):
                self._open(topic, peer, payload, MAXIMUM_MESSAGE_BYTES)
        except FedtailorError as error:
            self._events.append(Refusal(topic, error, None))

    def _open(self, topic: str, peer: str, payload: bytes, most_bytes: int) -> None:
        """Take a sealed message; what its sender signed but nobody can accept is answered."""
        verified = verify(payload, self.expectation.find_key, most_bytes)
        header = verified.header
        if header.sender != peer:
            raise NotAllowedError("a message is on another sender's topic", expected=header.sender, got=topic)
        try:
            envelope = verified.read(self._expectation, self.clock())
        except MessageError as error:
            if header.kind not in OF_THE_MOMENT:
                self._postman.say(_receipt(header, reason_code(error), error.sentence()), peer)
            self._events.append(Refusal(topic, error, header))
            return
        self._hear(peer, envelope)
        self._collect()

    def _hear(self, peer: str, envelope: Envelope) -> None:
        """Take a message that is believed."""
        message, now = envelope.message, self.timer()
        if isinstance(message, Receipt):
            self._answered(peer, message)
        elif isinstance(message, Want | Done | Fail | Cancel):
            self._transfers.hear(peer, message, now)
        elif isinstance(message, Offer) and message.media != "message":
            self._transfers.offered(peer, message, now)
        elif envelope.header.kind in OF_THE_MOMENT - {Offer.KIND}:
            self._events.append(envelope)
        else:
            known = self._known(envelope.header)
            if known is None and isinstance(message, Offer):
                known = self._judge(peer, envelope.header, message)
            if known is not None:
                self._postman.say(known, peer)
            elif isinstance(message, Offer):
                self._transfers.offered(peer, message, now)
            else:
                self._events.append(envelope)

    def _known(self, header: Header) -> Receipt | None:
        """Return the answer to a message that was answered before, or is too old to tell."""
        try:
            return self.inbox.find(header.sender, header.boot, header.sequence)
        except StaleMessageError as error:
            return _receipt(header, "stale", error.sentence())

    def _judge(self, peer: str, header: Header, offer: Offer) -> Receipt | None:
        """Return the refusal of a large message that the caller does not want."""
        verdict = None if self.admit is None else self.admit(peer, offer)
        return None if verdict is None else _receipt(header, *verdict)

    def _answered(self, peer: str, receipt: Receipt) -> None:
        """Take a receipt; one that says 'later' leaves the message waiting."""
        place = Place(receipt.boot, receipt.sequence)
        waiting = self.outbox.find(place)
        if receipt.device != self.address.sender or waiting is None or waiting.peer != peer:
            LOGGER.debug("a receipt of %s for %s answers nothing that waits", peer, place)
        elif receipt.code in TRANSIENT:
            self._transfers.outflow.end(place)
            self._resending.tried(place, self.timer())
        else:
            self._settle(place, receipt)

    def _settle(self, place: Place, receipt: Receipt | None) -> None:
        """Forget a message that was answered or has expired."""
        waiting = self.outbox.settle(place)
        self._resending.forget(place)
        self._transfers.outflow.end(place)
        if waiting is not None:
            self._events.append(Settled(waiting, receipt))

    def _collect(self) -> None:
        """Take what transfers brought or ended."""
        transfers = self._transfers
        while transfers.messages:
            peer, payload = transfers.messages.popleft()
            topic = f"transfer from {peer}"
            try:
                self._open(topic, peer, payload, MAXIMUM_SEALED_BYTES)
            except FedtailorError as error:
                self._events.append(Refusal(topic, error, None))
        while transfers.sent:
            self._ended(transfers.sent.popleft())
        while transfers.events:
            self._events.append(transfers.events.popleft())

    def _ended(self, sent: Sent) -> None:
        """Take the end of a pressed message: one that can never be taken is settled, any other is offered again later."""
        if isinstance(sent.tag, Place) and sent.code == "too-large":
            place = sent.tag
            self._settle(
                place, Receipt(self.address.sender, place.boot, place.sequence, accepted=False, reason=sent.reason, code=sent.code)
            )

    def _due(self) -> float:
        """Return when there is something to do, on the timer."""
        if not self.port.connected:
            return self.timer() + RECONNECT_SECONDS
        pending = self.outbox.pending(self.clock())
        return max(self._next_tick, min(self._transfers.due, self._resending.next_due(pending, self._window)))

    @property
    def _window(self) -> int:
        """Return how many messages may be without an answer."""
        return max(1, min(MOST_UNANSWERED, self.port.window - SPARE))


def _receipt(header: Header, code: ReasonCode, reason: str) -> Receipt:
    """Return the receipt of the message with a header."""
    line = "".join(letter if letter.isprintable() else " " for letter in reason)[:MAXIMUM_REASON]
    return Receipt(header.sender, header.boot, header.sequence, accepted=code == "accepted", reason=line, code=code)
