"""Signing and publishing once: everything that leaves a side goes through here."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from protocol.envelope import MAXIMUM_MESSAGE_BYTES, Address, seal
from protocol.errors import OversizeMessageError, TransportError
from protocol.keys import PrivateKey
from protocol.messages import Message
from protocol.outbox import Place
from protocol.port import Port
from protocol.topics import Routes

PUBLISH_SECONDS = 10.0
CONTROL_SECONDS = 300.0  # how long a message of a transfer means anything
LOGGER = logging.getLogger(__name__)


@dataclass
class Postman:
    """Sends for one side.

    Args:
        port: The connection.
        key: Own private key.
        address: Own federation, id, boot counter and bundle.
        routes: Topics to peers.
        clock: Seconds since 1970, UTC.
    """

    port: Port
    key: PrivateKey
    address: Address
    routes: Routes
    clock: Callable[[], float]
    _sequences: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def say(self, message: Message, peer: str, place: Place | None = None) -> bool:
        """Send a message of the moment to a peer, under a name of its own or under ``place``; tell whether it went out."""
        return self.hand_over(self.routes.topic_to(peer), self._sealed(message, CONTROL_SECONDS, place))

    def post(self, message: Message, topic: str, *, lifetime: float, retain: bool = False) -> bool:
        """Send a message once, wait for the broker, and tell whether it took the message."""
        payload = self._sealed(message, lifetime, None)
        return self._try(topic, lambda: self.port.publish(topic, payload, retain=retain, deadline_seconds=PUBLISH_SECONDS))

    def seal(self, message: Message, place: Place, times: tuple[float, float], most_bytes: int) -> bytes:
        """Return the payload of a message that has a name."""
        return seal(message, replace(self.address, boot=place.boot), place.sequence, times, self.key, most_bytes)

    def hand_over(self, topic: str, payload: bytes) -> bool:
        """Send a payload, do not wait for the broker, and tell whether it went out; what must arrive is sent again by somebody."""
        return self._try(topic, lambda: self.port.publish_nowait(topic, payload, deadline_seconds=PUBLISH_SECONDS))

    def _sealed(self, message: Message, lifetime: float, place: Place | None) -> bytes:
        """Return the payload of a message of the moment."""
        now = self.clock()
        place = place or Place(self.address.boot, next(self._sequences))
        return self.seal(message, place, (now, now + lifetime), MAXIMUM_MESSAGE_BYTES)

    def _try(self, topic: str, send: Callable[[], None]) -> bool:
        """Send if there is a connection, and tell whether it worked."""
        if not self.port.connected:
            return False
        try:
            send()
        except (TransportError, OversizeMessageError) as error:
            LOGGER.info("not sent to %s: %s", topic, error.sentence())
            return False
        return True
