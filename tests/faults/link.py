"""One connection through the proxy: two directions, each with what a fault plan does to it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections import Counter, deque
from collections.abc import Coroutine

from tests.faults.faults import Faults
from tests.faults.packets import CONNECT, PUBLISH, Publish, Splitter, kind_of

READ_BYTES = 65_536
QUEUED_PIECES = 64


class Shared:
    """What all connections of a proxy have in common."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.counts: Counter[str] = Counter()
        self.open = asyncio.Event()  # cleared while the network is a black hole
        self.open.set()
        self.matching = 0  # PUBLISH packets so far whose topic the plan touches


class Direction:
    """Bytes from one socket to the other."""

    def __init__(self, name: str, link: Link, writer: asyncio.StreamWriter) -> None:
        self.name, self.link, self.writer = name, link, writer
        self.splitter = Splitter()
        self.pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self.last_due = 0.0
        self.busy_until = 0.0  # when the last byte of a slow line has left
        self.finished = asyncio.Event()
        self.topic_due: dict[str, float] = {}
        self.held: dict[str, deque[bytes]] = {}  # packets that wait, by topic

    def tasks(self, reader: asyncio.StreamReader) -> tuple[Coroutine[object, object, None], ...]:
        return self.read(reader), self.write()

    async def read(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(READ_BYTES):
            self.link.shared.counts[f"bytes_{self.name}"] += len(data)
            self.link.passed += len(data)
            self._take(data)
            while self.pieces.qsize() > QUEUED_PIECES:  # noqa: ASYNC110  # a queue has no event for "short again"
                await asyncio.sleep(0.005)
        self.pieces.put_nowait((self.last_due, b""))  # an orderly end: what is on its way arrives first
        await asyncio.Event().wait()

    def _take(self, data: bytes) -> None:
        faults = self.link.faults
        if self.link.is_mqtt is None and self.name == "up":
            self.link.is_mqtt = data[0] >> 4 == CONNECT
        packets = self.splitter.feed(data) if self.link.is_mqtt else []
        for packet in packets:
            self.link.shared.counts[f"publishes_{self.name}"] += kind_of(packet) == PUBLISH
        if not (self.link.is_mqtt and faults.reads_mqtt):
            self.put(data)
            return
        for packet in packets:
            if kind_of(packet) == PUBLISH and faults.topic in (publish := Publish.read(packet)).topic:
                self._publish(publish)
            else:
                self.put(packet)

    def _publish(self, publish: Publish) -> None:
        shared, faults, draw = self.link.shared, self.link.faults, self.link.random
        shared.matching += 1
        dropped = shared.matching in faults.drop
        if dropped or (publish.number is not None and draw.random() < faults.swallow):
            shared.counts["dropped" if dropped else "swallowed"] += 1
            if publish.number is not None:
                self.link.other(self).put(publish.acknowledgement())
            return
        packets = [publish.packet]
        if draw.random() < faults.duplicate:
            shared.counts["duplicated"] += 1
            packets.append(publish.copy())
        seconds = draw.uniform(*faults.delay_seconds) if draw.random() < faults.delay else 0.0
        shared.counts["delayed"] += seconds > 0
        for packet in packets:
            self._hold(publish.topic, packet, seconds)

    def _hold(self, topic: str, packet: bytes, seconds: float) -> None:
        """Pass a packet on after some seconds, and after those of its topic that wait already."""
        waiting = self.held.setdefault(topic, deque())
        if not waiting and not seconds:
            self.put(packet)
            return
        loop = asyncio.get_running_loop()
        self.topic_due[topic] = due = max(self.topic_due.get(topic, 0.0), loop.time() + seconds)
        waiting.append(packet)
        loop.call_at(due, lambda: self.put(waiting.popleft()))

    def put(self, data: bytes) -> None:
        """Queue bytes for the other side; never blocks, but ``read`` waits until there is room again."""
        faults, draw = self.link.faults, self.link.random
        now = asyncio.get_running_loop().time()
        for piece in self._sliced(data):
            self.last_due = max(self.last_due, now + (draw.uniform(*faults.latency) if faults.latency else 0.0))
            self.pieces.put_nowait((self.last_due, piece))

    def _sliced(self, data: bytes) -> list[bytes]:
        if self.link.faults.slices is None:
            return [data]
        pieces, start = [], 0
        while start < len(data):
            size = self.link.random.randint(*self.link.faults.slices)
            pieces.append(data[start : start + size])
            start += size
        return pieces

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, piece = await self.pieces.get()
            if due > loop.time():
                await asyncio.sleep(due - loop.time())
            await self.link.shared.open.wait()
            if not piece:
                await self._finish()
                return
            speed = self.link.faults.bytes_per_second
            if speed is not None:
                await self._write_slowly(piece, speed)
                continue
            self.writer.write(piece)
            await self.writer.drain()

    async def _finish(self) -> None:
        """Say that nothing more comes, and return when the other direction is at its end too."""
        self.writer.write_eof()
        self.finished.set()
        await self.link.other(self).finished.wait()

    async def _write_slowly(self, data: bytes, speed: float) -> None:
        """Write each part only when the time that it takes is over: a sleep that ends early makes no line faster."""
        loop, step = asyncio.get_running_loop(), max(1, int(speed / 50))
        for start in range(0, len(data), step):
            part = data[start : start + step]
            self.busy_until = max(self.busy_until, loop.time()) + len(part) / speed
            while (rest := self.busy_until - loop.time()) > 0:  # noqa: ASYNC110  # time alone ends it
                await asyncio.sleep(rest)
            self.writer.write(part)
            await self.writer.drain()


class Link:
    """One client's connection and ours to the broker."""

    def __init__(self, shared: Shared, seed: str) -> None:
        self.shared = shared
        self.faults = shared.faults
        self.random = random.Random(seed)
        self.passed = 0
        self.is_mqtt: bool | None = None
        self.directions: list[Direction] = []
        self.end = asyncio.Event()

    def other(self, direction: Direction) -> Direction:
        return self.directions[self.directions[0] is direction]

    async def run(self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter], port: int) -> None:
        """Pass bytes on until one side or the plan ends it."""
        await self.shared.open.wait()
        try:
            server = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self.shared.counts["refused"] += 1
            abort(client[1])
            return
        self.directions = [Direction("up", self, server[1]), Direction("down", self, client[1])]
        ways = [each for direction, reader in zip(self.directions, (client[0], server[0]), strict=True) for each in direction.tasks(reader)]
        tasks = [asyncio.ensure_future(each) for each in (self._reset(), self._cut(), *ways)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        done = [task.done() for task in tasks]
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        self.shared.counts["errors"] += sum(isinstance(each, Exception) and not isinstance(each, OSError) for each in results)
        self.shared.counts["resets"] += done[0]
        self.shared.counts["cuts"] += done[1] and not done[0]
        for writer in (client[1], server[1]):
            abort(writer) if any(done[:2]) or any(results[2:]) else writer.close()

    async def _reset(self) -> None:
        """Return when it is time to break the connection."""
        seconds = None if self.faults.reset_every is None else self.random.uniform(*self.faults.reset_every)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.end.wait(), seconds)

    async def _cut(self) -> None:
        """Return when enough bytes have passed."""
        if self.faults.cut_after is None:
            await asyncio.Event().wait()
            return
        limit = self.random.uniform(*self.faults.cut_after)
        while self.passed < limit:  # noqa: ASYNC110  # two directions count here
            await asyncio.sleep(0.002)


def abort(writer: asyncio.StreamWriter) -> None:
    """Close with RST: what is on its way is lost, and the other side learns it as an error."""
    raw = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
