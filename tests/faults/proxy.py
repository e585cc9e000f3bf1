"""A TCP and MQTT-aware fault proxy on loopback, in a process of its own.

with FaultProxy(broker.port, Faults(reset_every=(0.3, 1.2), swallow=0.2), seed=7) as proxy:
    ... Connection(proxy.address, ...) ...
    print(proxy.counts())
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from protocol.broker_address import BrokerAddress
from tests.faults.faults import Faults
from tests.faults.link import Link, Shared

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("connections", "refused", "resets", "cuts", "swallowed", "dropped", "duplicated", "delayed", "errors")
PASSED = ("publishes_up", "publishes_down", "bytes_up", "bytes_down", "peak_connects")


class FaultProxy:
    """The handle that a test holds; the proxy runs inside a ``with`` block."""

    def __init__(self, broker_port: int, faults: Faults | None = None, seed: int = 0) -> None:
        self.broker_port, self.faults, self.seed = broker_port, faults or Faults(), seed
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress("127.0.0.1", self.port)

    def __enter__(self) -> FaultProxy:
        command = [sys.executable, "-m", "tests.faults.proxy", str(self.broker_port), str(self.seed), json.dumps(vars(self.faults))]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        try:
            self._process.communicate(timeout=10)  # it ends with its standard input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def counts(self) -> dict[str, int]:
        """Return what it did so far; ``peak_connects`` is the largest number of connects within one second."""
        answer: dict[str, int] = self._ask({"do": "counts"})
        return answer

    def change(self, faults: Faults) -> None:
        """Follow another plan from the next connection on."""
        self._ask({"do": "change", "faults": vars(faults)})

    def reset_all(self) -> None:
        """Reset all connections now."""
        self._ask({"do": "reset"})

    def black_hole(self, *, closed: bool) -> None:
        """Let nothing through, without a word to either side, or let all through again."""
        self._ask({"do": "hole", "closed": closed})

    def _ask(self, request: dict[str, Any]) -> Any:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())


@dataclass
class Server:
    """The proxy's own process."""

    broker_port: int
    seed: int
    shared: Shared
    links: set[Link] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    connects: list[float] = field(default_factory=list)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connects.append(time.monotonic())
        link = Link(self.shared, f"{self.seed} {len(self.connects)}")
        self.links.add(link)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await link.run((reader, writer), self.broker_port)
        except asyncio.CancelledError:  # the proxy ends; the stream's callback would print it
            return
        finally:
            self.links.discard(link)
            self.tasks.discard(task)

    def do(self, request: dict[str, Any]) -> object:
        if request["do"] == "change":
            self.shared.faults = faults_of(request["faults"])
        elif request["do"] == "reset":
            for link in self.links:
                link.end.set()
        elif request["do"] == "hole":
            (self.shared.open.clear if request["closed"] else self.shared.open.set)()
        counts = {**self.shared.counts, "connections": len(self.connects), "peak_connects": peak(self.connects)}
        return {name: counts.get(name, 0) for name in (*NAMES, *PASSED)}

    async def run(self) -> None:
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0, backlog=1024)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        commands = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        while line := await commands.readline():
            sys.stdout.write(json.dumps(self.do(json.loads(line))) + "\n")
            sys.stdout.flush()
        await self.end(server)

    async def end(self, server: asyncio.Server) -> None:
        """End every connection by itself: one that is cancelled makes asyncio complain on standard error."""
        server.close()
        self.shared.open.set()
        for link in self.links:
            link.end.set()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=5)


def faults_of(content: dict[str, Any]) -> Faults:
    known = {each.name for each in dataclasses.fields(Faults)}
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items() if name in known}
    return Faults(**fields)


def peak(times: list[float]) -> int:
    """Return the most events within one second."""
    most = first = 0
    for last, moment in enumerate(times):
        while moment - times[first] > 1:
            first += 1
        most = max(most, last - first + 1)
    return most


async def main() -> None:
    port, seed, faults = sys.argv[1:]
    await Server(int(port), int(seed), Shared(faults_of(json.loads(faults)))).run()


if __name__ == "__main__":
    asyncio.run(main())
