"""What a broker can stand: what it says when a connection is made, and what is learned from connections that break."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import OversizeMessageError, TransportError

MAXIMUM_PAYLOAD_BYTES = 256 * 1024  # of one PUBLISH: a message, or a chunk of large content
SMALLEST_PAYLOAD_BYTES = 4096  # a broker that does not stand this has another reason
MOST_UNACKNOWLEDGED = 20
STRIKES = 2
HEADER_ROOM = 256  # of a PUBLISH packet beside its payload: fixed header, our longest topic, number, properties


@dataclass
class Limits:
    """The limits of one broker; whoever changes them holds the connection's lock.

    A payload larger than every one that the broker has taken so far may be one that it cannot stand. It goes on its own, so
    that it alone is to blame when the connection breaks; when that happens twice, the largest payload is halved until this
    one is too large. A broker that has told its largest packet needs no such proof.

    Attributes:
        learned: Most bytes of a payload, from experience.
        packet: Most bytes of a packet, as told; None when nothing was told.
        window: Most messages without an acknowledgement.
        quality: Most that the broker takes as quality of service, 0 or 1.
        retains: Whether it keeps retained messages.
        keepalive: Seconds of silence after which it closes a connection, if it has told; 0 for never.
        heard_of: Whether this broker has spoken MQTT 5, in which such things are told.
    """

    learned: int = MAXIMUM_PAYLOAD_BYTES
    packet: int | None = None
    window: int = MOST_UNACKNOWLEDGED
    quality: int = 1
    retains: bool = True
    keepalive: int | None = None
    heard_of: bool = False
    _proven: int = SMALLEST_PAYLOAD_BYTES
    _strikes: int = 0

    def told(self, properties: object | None) -> None:
        """Take the properties of a CONNACK packet (MQTT 5, section 3.2.2.3), None for MQTT 3.1.1; what is absent is as by default."""
        self.heard_of = self.heard_of or properties is not None
        self.packet = getattr(properties, "MaximumPacketSize", None)
        self.window = min(MOST_UNACKNOWLEDGED, max(1, getattr(properties, "ReceiveMaximum", MOST_UNACKNOWLEDGED)))
        self.quality = min(1, getattr(properties, "MaximumQoS", 1))
        self.retains = bool(getattr(properties, "RetainAvailable", 1))
        self.keepalive = getattr(properties, "ServerKeepAlive", self.keepalive)  # it says nothing when asked for what it wants

    @property
    def payload(self) -> int:
        """Return the most bytes of one payload."""
        return self.learned if self.packet is None else max(0, min(self.learned, self.packet - HEADER_ROOM))

    def check(self, topic: str, payload: bytes, *, retain: bool) -> None:
        """Refuse what the broker would not take.

        Raises:
            OversizeMessageError: The payload is too large.
            TransportError: It should be retained, and the broker keeps nothing.
        """
        if len(payload) > self.payload:
            raise OversizeMessageError("a message is too large to send", expected=f"at most {self.payload} bytes", got=len(payload))
        if retain and not self.retains:
            raise TransportError(f"the broker keeps no retained message on {topic}", hint="allow retained messages in its settings")

    def is_proven(self, size: int) -> bool:
        """Tell whether a payload of this size is known to pass."""
        return self.packet is not None or size <= self._proven

    def passed(self, size: int) -> None:
        """Note that the broker took a payload."""
        if size > self._proven:
            self._proven, self._strikes = size, 0

    def broke(self, size: int, *, certain: bool) -> None:
        """Note that the connection broke over one payload; ``certain`` when the broker has named its size as the reason."""
        if not certain and self.is_proven(size):
            return
        self._strikes += 1
        if certain or self._strikes >= STRIKES:
            self._strikes = 0
            while self.learned >= max(size, SMALLEST_PAYLOAD_BYTES + 1):
                self.learned = max(SMALLEST_PAYLOAD_BYTES, self.learned // 2)


def publish_bytes(topic: str, payload: bytes) -> int:
    """Return the size of a PUBLISH packet at QoS 1, properties aside."""
    remaining = 2 + len(topic.encode()) + 2 + len(payload)
    length_digits = 1 if remaining < 128 else 2 if remaining < 16384 else 3
    return 1 + length_digits + remaining
