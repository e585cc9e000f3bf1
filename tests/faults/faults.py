"""What a fault proxy does to those who connect through it."""

from __future__ import annotations

from dataclasses import dataclass

Range = tuple[float, float]


@dataclass(frozen=True)
class Faults:
    """A fault plan; every draw is uniform in its range, from the proxy's seed and the number of the connection.

    The first half treats bytes and works on anything, TLS and WebSockets too; the second half reads MQTT and lets any other
    stream through.

    Attributes:
        reset_every: Seconds after which a connection is reset (RST to both sides).
        cut_after: Bytes, both ways together, after which a connection is reset.
        latency: Seconds by which every piece is late, in order.
        bytes_per_second: Speed of each direction of each connection.
        slices: Bytes of the pieces in which data is passed on, such as (1, 7).
        swallow: Share of PUBLISH packets that are acknowledged by a forged PUBACK and go nowhere.
        duplicate: Share of PUBLISH packets of which a fresh copy follows.
        delay: Share of PUBLISH packets that wait; those on one topic keep their order, others overtake.
        delay_seconds: How long they wait.
        drop: Numbers of PUBLISH packets, counted from 1 over all connections and both ways, that are swallowed.
        topic: Text that a topic must contain for the MQTT faults to touch it, and to be counted for ``drop``.
    """

    reset_every: Range | None = None
    cut_after: Range | None = None
    latency: Range | None = None
    bytes_per_second: float | None = None
    slices: tuple[int, int] | None = None
    swallow: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    delay_seconds: Range = (0.05, 0.5)
    drop: tuple[int, ...] = ()
    topic: str = ""

    @property
    def reads_mqtt(self) -> bool:
        """Tell whether packets must be told apart."""
        return bool(self.swallow or self.duplicate or self.delay or self.drop)
