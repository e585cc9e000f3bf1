"""Getting the messages of an outbox to their receivers: sent, or offered when they are large, until each is answered."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

from protocol.delivery_events import Event, Settled
from protocol.envelope import MAXIMUM_MESSAGE_BYTES
from protocol.message_checks import TRANSIENT
from protocol.messages import Receipt
from protocol.outbox import Outbox, Place, Waiting
from protocol.outflow import Sent
from protocol.postman import Postman
from protocol.resending import Resending
from protocol.transfer_source import BytesSource
from protocol.transfers import Transfers

MOST_UNANSWERED = 16
SPARE = 4  # of the broker's window, for messages of the moment
TURN_SECONDS = 0.25  # until a large message that waits for others to be done is looked at again
LOGGER = logging.getLogger(__name__)


@dataclass
class Dispatch:
    """The way out of an outbox.

    Args:
        outbox: Messages that wait for receipts.
        postman: Sends.
        transfers: Carries large messages.
        resending: When each message is sent next.
        events: Gets a ``Settled`` for each message whose waiting is over.
    """

    outbox: Outbox
    postman: Postman
    transfers: Transfers
    resending: Resending
    events: deque[Event]

    def tick(self, now: float) -> None:
        """End what has expired, and send what is due."""
        clock = self.postman.clock()
        for waiting in self.outbox.expired(clock):
            self._settle(waiting.place, None)
        if self.postman.port.connected:
            for waiting in self.resending.due(self.outbox.pending(clock), self._window, now):
                self._attempt(waiting, now)

    def answered(self, peer: str, receipt: Receipt, now: float) -> None:
        """Take a receipt; one that says 'later' leaves the message waiting."""
        place = Place(receipt.boot, receipt.sequence)
        waiting = self.outbox.find(place)
        if receipt.device != self.postman.address.sender or waiting is None or waiting.peer != peer:
            LOGGER.debug("a receipt of %s for %s answers nothing that waits", peer, place)
        elif receipt.code in TRANSIENT:
            self.transfers.outflow.end(place)
            self.resending.tried(place, now)
        else:
            self._settle(place, receipt)

    def ended(self, sent: Sent) -> None:
        """Take the end of a large message's transfer: one that can never be taken is settled, any other is offered again later."""
        if isinstance(sent.tag, Place) and sent.code == "too-large":
            name = (self.postman.address.sender, sent.tag.boot, sent.tag.sequence)
            self._settle(sent.tag, Receipt(*name, accepted=False, reason=sent.reason, code=sent.code))

    @property
    def due(self) -> float:
        """Return when ``tick`` has something to send."""
        return self.resending.next_due(self.outbox.pending(self.postman.clock()), self._window)

    def _attempt(self, waiting: Waiting, now: float) -> None:
        """Send a waiting message, or offer it when it is too large for one payload."""
        outflow, port = self.transfers.outflow, self.postman.port
        if waiting.size <= min(MAXIMUM_MESSAGE_BYTES, port.maximum_payload):
            self.resending.tried(waiting.place, now)
            self.postman.hand_over(self.postman.routes.topic_to(waiting.peer), self.outbox.payload(waiting.place))
        elif outflow.is_pressed(waiting.place):
            self.resending.tried(waiting.place, now)  # the transfer repeats its offer by itself
        elif not outflow.has_room(waiting.peer):
            self.resending.postpone(waiting.place, now + TURN_SECONDS)
        else:
            self.resending.tried(waiting.place, now)
            source, deadline = BytesSource(self.outbox.payload(waiting.place)), now + waiting.expires - self.postman.clock()
            said = outflow.press(waiting.peer, source, expires=waiting.expires, deadline=deadline, tag=waiting.place, now=now)
            self.transfers.take_out(said)

    def _settle(self, place: Place, receipt: Receipt | None) -> None:
        """Forget a message that was answered or has expired."""
        waiting = self.outbox.settle(place)
        self.resending.forget(place)
        self.transfers.outflow.end(place)
        if waiting is not None:
            self.events.append(Settled(waiting, receipt))

    @property
    def _window(self) -> int:
        """Return how many messages for one peer may be without an answer."""
        return max(1, min(MOST_UNANSWERED, self.postman.port.window - SPARE))
