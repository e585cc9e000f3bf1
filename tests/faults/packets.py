"""As much of MQTT as a proxy must read: where packets end, and what a PUBLISH says."""

from __future__ import annotations

from dataclasses import dataclass

CONNECT, PUBLISH, PUBACK = 1, 3, 4
LENGTH_DIGITS = 4


class Splitter:
    """Cuts a stream of bytes into MQTT packets."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.is_mqtt: bool | None = None  # known with the first byte

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        packets = []
        while (length := _packet_length(self._buffer)) is not None and length <= len(self._buffer):
            packets.append(bytes(self._buffer[:length]))
            del self._buffer[:length]
        return packets


def _packet_length(buffer: bytearray) -> int | None:
    remaining = 0
    for place in range(1, 1 + LENGTH_DIGITS):
        if place >= len(buffer):
            return None
        remaining |= (buffer[place] & 0x7F) << (7 * (place - 1))
        if buffer[place] < 0x80:
            return 1 + place + remaining
    raise ValueError("a remaining length of more than four digits")


def kind_of(packet: bytes) -> int:
    return packet[0] >> 4


@dataclass(frozen=True)
class Publish:
    """A PUBLISH packet.

    Attributes:
        topic: Its topic.
        number: Packet identifier, None at QoS 0.
        packet: The whole packet.
        number_at: Where the packet identifier stands, or would stand.
    """

    topic: str
    number: int | None
    packet: bytes
    number_at: int

    @classmethod
    def read(cls, packet: bytes) -> Publish:
        start = next(place for place in range(1, 1 + LENGTH_DIGITS) if packet[place] < 0x80) + 1
        end = start + 2 + int.from_bytes(packet[start : start + 2], "big")
        number = int.from_bytes(packet[end : end + 2], "big") if packet[0] & 0x06 else None
        return cls(packet[start + 2 : end].decode(), number, packet, end)

    def acknowledgement(self) -> bytes:
        """Return a PUBACK that says Success, in MQTT 3.1.1 and 5 alike."""
        assert self.number is not None
        return bytes([PUBACK << 4, 2]) + self.number.to_bytes(2, "big")

    def copy(self) -> bytes:
        """Return the same message as a packet of its own, at QoS 0: no packet identifier that the receiver could confuse."""
        body_start = next(place for place in range(1, 1 + LENGTH_DIGITS) if self.packet[place] < 0x80) + 1
        rest = self.number_at + (0 if self.number is None else 2)
        body = self.packet[body_start : self.number_at] + self.packet[rest:]
        return bytes([self.packet[0] & 0xF1]) + remaining_length(len(body)) + body


def remaining_length(length: int) -> bytes:
    digits = bytearray()
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (0x80 if length else 0))
        if not length:
            return bytes(digits)
