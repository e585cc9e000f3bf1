"""A broker in memory that loses, repeats and reorders by a seed, with a clock of its own: hours pass in milliseconds."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.errors import ConnectionLostError, OversizeMessageError


@dataclass(frozen=True)
class Packet:
    topic: str
    payload: bytes


@dataclass(frozen=True)
class Weather:
    """How bad the pipe is: chances of each message, and delays in seconds."""

    lost: float = 0.0
    twice: float = 0.0
    delay: float = 0.01
    jitter: float = 0.0
    cut: float = 0.0  # chance that a connection is reset while something is published


CALM = Weather()
STORM = Weather(lost=0.2, twice=0.2, delay=0.01, jitter=0.3, cut=0.02)


@dataclass
class Pipe:
    """All connections of one broker, and the time."""

    seed: int
    weather: Weather = CALM
    now: float = 0.0
    ports: list[MemoryPort] = field(default_factory=list)
    count: int = 0
    drop: Callable[[int, Packet], bool] = lambda *_: False  # the count of the message, from 1

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._order = itertools.count()

    def clock(self) -> float:
        return 1_800_000_000.0 + self.now

    def timer(self) -> float:
        return self.now

    def carry(self, packet: Packet) -> None:
        self.count += 1
        if self.random.random() < self.weather.lost or self.drop(self.count, packet):
            return
        for _ in range(2 if self.random.random() < self.weather.twice else 1):
            at = self.now + self.weather.delay + self.weather.jitter * self.random.random()
            for port in self.ports:
                if packet.topic in port.topics:
                    heapq.heappush(port.queue, (at, next(self._order), packet))


class MemoryPort:
    """One connection; fulfils protocol.port.Port."""

    def __init__(self, pipe: Pipe, *topics: str) -> None:
        self.pipe, self.topics = pipe, set(topics)
        self.queue: list[tuple[float, int, Packet]] = []
        self.connected, self.reconnects = True, 1
        self.maximum_payload, self.window = 256 * 1024, 20
        self.sent: list[Packet] = []
        pipe.ports.append(self)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, deadline_seconds: float = 10.0) -> None:
        if len(payload) > self.maximum_payload:
            raise OversizeMessageError("too large", expected=self.maximum_payload, got=len(payload))
        if not self.connected:
            raise ConnectionLostError("not connected")
        if self.pipe.random.random() < self.pipe.weather.cut:
            self.cut()
            raise ConnectionLostError("the connection broke")
        self.sent.append(Packet(topic, payload))
        self.pipe.carry(Packet(topic, payload))

    def publish_nowait(self, topic: str, payload: bytes, *, deadline_seconds: float = 10.0) -> None:
        self.publish(topic, payload, deadline_seconds=deadline_seconds)

    def receive(self, deadline_seconds: float) -> Packet | None:
        """Return the next packet; waiting is letting the time of the pipe pass."""
        until = self.pipe.now + deadline_seconds
        if self.queue and self.queue[0][0] <= until:
            at, _, packet = heapq.heappop(self.queue)
            self.pipe.now = max(self.pipe.now, at)
            return packet
        self.pipe.now = until
        return None

    def cut(self) -> None:
        """Lose the connection, what was on its way to here, and be back."""
        self.queue.clear()
        self.reconnects += 1
