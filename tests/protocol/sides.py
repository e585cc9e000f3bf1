"""A device and a coordinator with real outboxes, inboxes and keys, over a pipe in memory."""

from __future__ import annotations

import sqlite3
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from protocol.database import open_database, transaction
from protocol.delivery import Deliverer, Event
from protocol.envelope import Address, Envelope, Expectation
from protocol.inbox import SCHEMA, Inbox
from protocol.keys import PrivateKey, PublicKey
from protocol.message_checks import ReasonCode
from protocol.outbox import Outbox
from protocol.topics import COORDINATOR, CoordinatorRoutes, DeviceRoutes, Topics
from protocol.transfer_limits import TransferLimits
from tests.protocol.lossy import MemoryPort, Pipe

TOPICS = Topics("demo")
BUNDLE = "ab" * 32
KEYS = {COORDINATOR: PrivateKey(bytes(range(32))), "pi-1": PrivateKey(bytes(range(1, 33))), "pi-2": PrivateKey(bytes(range(2, 34)))}
COUNTED = """CREATE TABLE IF NOT EXISTS counted (
    sender TEXT, boot INTEGER, sequence INTEGER, kind TEXT, PRIMARY KEY (sender, boot, sequence)
)"""


def _close(database: sqlite3.Connection, outbox: Outbox) -> None:
    """Close what a test forgot; Python 3.13 warns of it."""
    database.close()
    outbox.close()


def find_key(sender: str) -> PublicKey:
    return KEYS[sender].public


@dataclass
class Side:
    """One side that can be killed and started again."""

    name: str
    folder: Path
    pipe: Pipe
    limits: TransferLimits = field(default_factory=TransferLimits)
    boot: int = 0
    verdict: tuple[ReasonCode, str] = ("accepted", "")
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics = TOPICS
        routes = CoordinatorRoutes(TOPICS) if self.name == COORDINATOR else DeviceRoutes(TOPICS, self.name)
        self.routes = routes
        heard = (TOPICS.up("pi-1"), TOPICS.up("pi-2")) if isinstance(routes, CoordinatorRoutes) else routes.subscriptions
        self.port = MemoryPort(self.pipe, *heard)
        self.start()

    def start(self) -> None:
        self.boot += 1
        self.database: sqlite3.Connection = open_database(self.folder / "journal.db", f"{SCHEMA}; {COUNTED}")
        self.outbox = Outbox(self.folder / "outbox.db", self.boot)
        weakref.finalize(self, _close, self.database, self.outbox)
        address = Address("demo", self.name, self.boot, BUNDLE)
        expectation = Expectation("demo", BUNDLE, find_key)
        self.deliverer = Deliverer(
            self.port, self.outbox, Inbox(self.database), KEYS[self.name], address, expectation, self.routes, self.folder / "content",
            self.limits, clock=self.pipe.clock, timer=self.pipe.timer, draw=self.pipe.random.random,
        )  # fmt: skip

    def kill(self) -> None:
        """Forget everything that is not on disk."""
        self.deliverer.close()
        self.outbox.close()
        self.database.close()
        self.port.cut()

    def step(self, seconds: float) -> Event | None:
        """Handle at most one event, as a coordinator would: count, record and commit, then answer."""
        event = self.deliverer.receive(seconds)
        if event is None:
            return None
        self.events.append(event)
        if isinstance(event, Envelope) and event.header.kind in ("parameter-update/1", "evaluation-report/1"):
            receipt = self.deliverer.answer(event, *self.verdict)
            with transaction(self.database):
                name = (event.header.sender, event.header.boot, event.header.sequence, event.header.kind)
                self.database.execute("INSERT INTO counted VALUES (?, ?, ?, ?)", name)
                self.deliverer.inbox.record(receipt)
            self.deliverer.post_receipt(receipt)
        return event

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def counted(self) -> int:
        return int(self.database.execute("SELECT count(*) FROM counted").fetchone()[0])


def run(sides: list[Side], seconds: float, slice_seconds: float = 0.02) -> None:
    """Let some time pass."""
    until = sides[0].pipe.now + seconds
    while sides[0].pipe.now < until:
        for side in sides:
            while side.step(slice_seconds / len(sides)) is not None:
                pass
