"""What comes in: believed or refused, answered when it came before, handed on otherwise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from protocol.chunk_frame import is_chunk
from protocol.delivery_events import Event, Refusal
from protocol.dispatch import Dispatch
from protocol.envelope import MAXIMUM_MESSAGE_BYTES, MAXIMUM_SEALED_BYTES, Envelope, Expectation, Header, verify
from protocol.errors import FedtailorError, MessageError, NotAllowedError, RevokedDeviceError, StaleMessageError
from protocol.inbox import Inbox
from protocol.message_checks import MAXIMUM_REASON, ReasonCode
from protocol.messages import Cancel, ChannelHead, Done, Fail, GlobalPrototypes, Offer, Presence, Receipt, RoundResult, Want
from protocol.postman import Postman
from protocol.rate_limit import RateLimit
from protocol.reasons import reason_code
from protocol.transfers import Transfers

OF_THE_MOMENT = frozenset(
    kind.KIND for kind in (Receipt, Offer, Want, Done, Fail, Cancel, Presence, ChannelHead, RoundResult, GlobalPrototypes)
)


def receipt_of(header: Header, code: ReasonCode, reason: str) -> Receipt:
    """Return the receipt of the message with a header; the reason is made a short line."""
    line = "".join(letter if letter.isprintable() else " " for letter in reason)[:MAXIMUM_REASON]
    return Receipt(header.sender, header.boot, header.sequence, accepted=code == "accepted", reason=line, code=code)


@dataclass
class Reception:
    """The way in.

    Args:
        postman: Sends answers, and knows who may publish on a topic.
        inbox: Messages that were answered.
        expectation: What is accepted.
        rate_limit: How many messages of a peer are looked at.
        transfers: Takes chunks and the messages of transfers.
        dispatch: Takes receipts.
        admit: Gets a peer and its offer of a large message, and says why it is refused, or None.
        events: Gets what the caller should know.
    """

    postman: Postman
    inbox: Inbox
    expectation: Expectation
    rate_limit: RateLimit
    transfers: Transfers
    dispatch: Dispatch
    admit: Callable[[str, Offer], tuple[ReasonCode, str] | None]
    events: deque[Event]

    def __post_init__(self) -> None:
        """Take receipts of any bundle: each is matched with a message that waits, and a coordinator may have a newer bundle."""
        self.expectation = replace(self.expectation, bundle_free=self.expectation.bundle_free | {Receipt.KIND})

    def take(self, topic: str, payload: bytes, now: float) -> None:
        """Take one payload from the wire; whatever is wrong with it, delivery goes on."""
        peer = self.postman.routes.peer_of(topic)
        try:
            if peer is None:
                raise NotAllowedError("nothing is expected on this topic", got=repr(topic[:200]))
            if is_chunk(payload):
                self.transfers.chunk(peer, payload, now)
            elif self.rate_limit.allows(peer, now):
                self._open(topic, peer, payload, MAXIMUM_MESSAGE_BYTES, now)
        except FedtailorError as error:
            self.events.append(Refusal(topic, error, None))

    def collect(self, now: float) -> None:
        """Take what transfers brought or ended."""
        transfers = self.transfers
        while transfers.messages:
            peer, payload = transfers.messages.popleft()
            topic = f"transfer from {peer}"
            try:
                self._open(topic, peer, payload, MAXIMUM_SEALED_BYTES, now)
            except FedtailorError as error:
                self.events.append(Refusal(topic, error, None))
        while transfers.sent:
            self.dispatch.ended(transfers.sent.popleft())
        while transfers.events:
            self.events.append(transfers.events.popleft())

    def _open(self, topic: str, peer: str, payload: bytes, most_bytes: int, now: float) -> None:
        """Take a sealed message; what its sender signed but nobody can accept is answered."""
        verified = verify(payload, self.expectation.find_key, most_bytes)
        header = verified.header
        if header.sender != peer:
            raise NotAllowedError("a message is on another sender's topic", expected=header.sender, got=topic)
        try:
            envelope = verified.read(self.expectation, self.postman.clock())
        except (MessageError, RevokedDeviceError) as error:
            unanswered = OF_THE_MOMENT - {Offer.KIND} if isinstance(error, RevokedDeviceError) else OF_THE_MOMENT
            if header.kind not in unanswered:
                self.postman.say(receipt_of(header, reason_code(error), error.sentence()), peer)
            self.events.append(Refusal(topic, error, header))
        else:
            self._hear(peer, envelope, now)

    def _hear(self, peer: str, envelope: Envelope, now: float) -> None:
        """Take a message that is believed."""
        message = envelope.message
        if isinstance(message, Receipt):
            self.dispatch.answered(peer, message, now)
        elif isinstance(message, Want | Done | Fail | Cancel):
            self.transfers.hear(peer, message, now)
        elif isinstance(message, Offer) and message.media != "message":
            self.transfers.offered(peer, message, now)
        elif isinstance(message, Presence | ChannelHead | RoundResult | GlobalPrototypes):
            self.events.append(envelope)
        else:
            self._hear_once(peer, envelope, now)

    def _hear_once(self, peer: str, envelope: Envelope, now: float) -> None:
        """Take a message that counts once, or the offer of one: the same again gets the same answer."""
        message = envelope.message
        answer = self._known(envelope.header)
        if answer is None and isinstance(message, Offer):
            verdict = self.admit(peer, message)
            answer = None if verdict is None else receipt_of(envelope.header, *verdict)
        if answer is not None:
            self.postman.say(answer, peer)
        elif isinstance(message, Offer):
            self.transfers.offered(peer, message, now)
        else:
            self.events.append(envelope)

    def _known(self, header: Header) -> Receipt | None:
        """Return the answer to a message that was answered before, or is too old to tell."""
        try:
            return self.inbox.find(header.sender, header.boot, header.sequence)
        except StaleMessageError as error:
            return receipt_of(header, "stale", error.sentence())
