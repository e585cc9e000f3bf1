"""A device's agent: births, bundles from the channel, tasks and updates, over a connection that may break at any time.

The agent never waits for the network: what it owes lies in its outbox and its memory, and whatever fails, the next
connection or the next process goes on from there.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path

from edge_runtime.agent_bundles import Bundles
from edge_runtime.agent_memory import AgentMemory
from edge_runtime.agent_work import Work
from edge_runtime.bundle import Bundle
from protocol.delivery import Deliverer, Event, Settled
from protocol.delivery_events import Fetched, NotFetched, Refusal
from protocol.envelope import Address, Envelope, Expectation
from protocol.errors import FedtailorError, UnknownDeviceError
from protocol.fleet_messages import ChannelHead, Presence
from protocol.keys import PrivateKey, PublicKey
from protocol.messages import Message, Receipt, RoundResult, RoundTask
from protocol.outbox import Outbox
from protocol.port import Port
from protocol.topics import COORDINATOR, DeviceRoutes, Topics
from protocol.transfer_limits import TransferLimits

PRESENCE_SECONDS = 30.0
FIRST_PRESENCE_SECONDS = 2.0
PRESENCE_LIFETIME_SECONDS = 90.0
BUNDLE_PATIENCE_SECONDS = 86_400.0
BUSY_SECONDS = 0.05  # how often finished work is looked for
NO_BUNDLE = "0" * 64
VERSION = "1"
LARGEST_BUNDLE_BYTES = 512 * 1024 * 1024
REFUSED_FOR = 3600.0  # seconds until a bundle that was refused is tried again
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentIdentity:
    """Who an agent is, and whom it believes.

    Attributes:
        federation: Its federation.
        device: Its id.
        key: Its private key.
        boot: Boot counter of this process.
        coordinator: Public key of the coordinator; None to believe the one that the bundle names.
    """

    federation: str
    device: str
    key: PrivateKey
    boot: int
    coordinator: PublicKey | None


@dataclass
class AgentCounts:
    """What an agent has done since it began."""

    taken: int = 0
    declined: int = 0
    updates: int = 0
    accepted: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    installed: int = 0
    latest_round: int | None = None


@dataclass
class FederationAgent:
    """An agent at work; for one thread.

    Args:
        identity: Who it is.
        port: Its connection.
        bundles: Its bundles.
        memory: Its memory.
        outbox: What it owes.
        folder: Where content that comes in pieces is put together.
        make_work: Gives the work for a bundle.
        executor: Where work is done.
        on_bundle: Told the bundle in use, at the start and when it changes.
        clock: Seconds since 1970, UTC.
        timer: Seconds of a clock that never goes back.
        draw: Random numbers from 0 to 1, for the waits of delivery.
    """

    identity: AgentIdentity
    port: Port
    bundles: Bundles
    memory: AgentMemory
    outbox: Outbox
    folder: Path
    make_work: Callable[[Bundle], Work]
    executor: Executor
    on_bundle: Callable[[Bundle], None] = lambda _: None
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random
    counts: AgentCounts = field(default_factory=AgentCounts)

    def __post_init__(self) -> None:
        """Open the bundle in use, and take up what an earlier process left."""
        self.topics = Topics(self.identity.federation)
        self._routes = DeviceRoutes(self.topics, self.identity.device)
        self._connections, self._next_presence, self._presence_wait = -1, 0.0, FIRST_PRESENCE_SECONDS
        self._head: ChannelHead | None = None
        self._refused_until: dict[str, float] = {}
        self._work: Work | None = None
        self._fetching: dict[str, RoundTask] = {}
        self._running: tuple[RoundTask, Future[Message]] | None = None
        self._ready: list[tuple[RoundTask, bytes]] = []
        self.bundle: Bundle | None = None
        self._use(self.bundles.current())

    def step(self, seconds: float) -> None:
        """Handle what comes within some seconds, and do all that is due."""
        self._be_present()
        self._collect_work()
        wait = min(seconds, BUSY_SECONDS) if self._running is not None else seconds
        event = self._deliverer.receive(wait)
        while event is not None:
            self._handle(event)
            event = self._deliverer.receive(0.0)
        self._collect_work()

    def close(self) -> None:
        """Say farewell and keep what is unfinished."""
        self._say_presence("offline", "stopped")
        self._deliverer.close()

    def _use(self, bundle: Bundle | None) -> None:
        """Speak about a bundle from now on, and take up the tasks that are open."""
        self.bundle = bundle
        digest = NO_BUNDLE if bundle is None else bundle.digest
        who = self.identity
        address = Address(who.federation, who.device, who.boot, digest)
        expectation = Expectation(who.federation, digest, self._find_key)
        limits = TransferLimits(largest=LARGEST_BUNDLE_BYTES, bytes_per_hour=4 * LARGEST_BUNDLE_BYTES)
        inbox, routes = self.memory.inbox, self._routes
        self._deliverer = Deliverer(
            self.port, self.outbox, inbox, who.key, address, expectation, routes, self.folder, limits,
            clock=self.clock, timer=self.timer, draw=self.draw,
        )  # fmt: skip
        self._fetching.clear()
        self._next_presence = 0.0
        if bundle is not None:
            self._work = self.make_work(bundle)
            self.on_bundle(bundle)
            for task in self.memory.open_tasks(self.clock()):
                self._fetch_state(task)

    def _find_key(self, sender: str) -> PublicKey:
        """Return the coordinator's key; nobody else may speak to a device."""
        named = None if self.bundle is None else self.bundle.manifest.coordinator_key
        if sender == COORDINATOR and self.identity.coordinator is not None:
            return self.identity.coordinator
        if sender != COORDINATOR or named is None:
            raise UnknownDeviceError("a message is not from the coordinator that this device believes", got=sender)
        return PublicKey.from_hex(named)

    def _be_present(self) -> None:
        """Say that this device is there: after each connection, and again and again, as the word expires."""
        now = self.clock()
        if self.port.reconnects != self._connections or self._next_presence == 0.0:
            self._connections, self._presence_wait, self._next_presence = self.port.reconnects, FIRST_PRESENCE_SECONDS, now
        if self.port.connected and now >= self._next_presence:
            self._say_presence("online", "training" if self._running is not None else "ready")
            self._next_presence = now + self._presence_wait
            self._presence_wait = min(2 * self._presence_wait, PRESENCE_SECONDS)  # the first word may have been lost

    def _say_presence(self, status: str, state: str) -> bool:
        """Publish this device's presence."""
        topic = self.topics.presence(self.identity.device)
        return self._deliverer.post(self._presence(status, state), topic, lifetime=PRESENCE_LIFETIME_SECONDS, retain=True)

    def _presence(self, status: str, state: str) -> Presence:
        """Return this device's presence."""
        digest = NO_BUNDLE if self.bundle is None else self.bundle.digest
        return Presence(status, self.identity.boot, digest, VERSION, state)  # type: ignore[arg-type]

    def _handle(self, event: Event) -> None:
        """Take what came; whatever is wrong with it, the agent goes on."""
        if isinstance(event, Settled):
            self._settled(event)
        elif isinstance(event, Fetched):
            self._fetched(event)
        elif isinstance(event, NotFetched):
            LOGGER.warning("%s: not fetched: %s", self.identity.device, event.reason)
            task = self._fetching.pop(event.transfer, None)
            if task is not None and task.deadline > self.clock():
                self._fetch_state(task)
        elif isinstance(event, Refusal):
            LOGGER.info("%s: refused: %s", self.identity.device, event.error.sentence())
        else:
            self._hear(event)

    def _hear(self, envelope: Envelope) -> None:
        """Take a message of the coordinator."""
        message = envelope.message
        if isinstance(message, RoundTask):
            self._take_task(envelope, message)
        elif isinstance(message, ChannelHead):
            self._follow(message)
        elif isinstance(message, RoundResult):
            self.counts.latest_round = message.round
            LOGGER.info("%s: round %d is over, %d devices", self.identity.device, message.round, message.devices)

    def _take_task(self, envelope: Envelope, task: RoundTask) -> None:
        """Take a task or decline it; the answer is durable before it is sent."""
        objection = "there is no bundle yet" if self._work is None else self._work.objection(task)
        late = task.deadline <= self.clock()
        if late:
            receipt = self._deliverer.answer(envelope, "late", "the deadline of the task has passed")
        elif objection is not None:
            receipt = self._deliverer.answer(envelope, "refused", objection)
        else:
            receipt = self._deliverer.answer(envelope, "accepted")
        with self.memory.transaction():
            self.memory.inbox.record(receipt)
            fresh = receipt.accepted and self.memory.take(task)
        self._deliverer.post_receipt(receipt)
        self.counts.taken += receipt.accepted
        self.counts.declined += not receipt.accepted
        if fresh:
            self._fetch_state(task)
        elif not receipt.accepted:
            LOGGER.warning("%s declines round %d: %s", self.identity.device, task.round, receipt.reason)

    def _fetch_state(self, task: RoundTask) -> None:
        """Fetch what a task begins with."""
        self._fetching[task.state] = task
        self._deliverer.fetch(task.state, expires=task.deadline)

    def _follow(self, head: ChannelHead) -> None:
        """Fetch the channel's bundle if it is newer than the one in use."""
        self._head = head
        mine = 0 if self.bundle is None else self.bundle.manifest.bundle_version
        known = self.bundle is not None and head.bundle == self.bundle.digest
        if known or head.bundle_version < mine or head.size > LARGEST_BUNDLE_BYTES:
            return
        if self._refused_until.get(head.bundle, 0.0) <= self.clock():
            self._deliverer.fetch(head.transfer, expires=self.clock() + BUNDLE_PATIENCE_SECONDS)

    def _fetched(self, fetched: Fetched) -> None:
        """Take content that came: a state to begin with, or a bundle."""
        task = self._fetching.pop(fetched.transfer, None)
        if task is not None:
            self._ready.append((task, fetched.path.read_bytes()))
            fetched.path.unlink(missing_ok=True)
        elif self._head is not None and fetched.transfer == self._head.transfer:
            self._install(fetched.path, self._head)
        else:
            fetched.path.unlink(missing_ok=True)

    def _install(self, archive: Path, head: ChannelHead) -> None:
        """Take the channel's bundle into use, or note why not."""
        try:
            bundle = self.bundles.install(archive, head.bundle)
        except FedtailorError as error:
            LOGGER.warning("%s: the channel's bundle is refused: %s", self.identity.device, error.sentence())
            self._refused_until[head.bundle] = self.clock() + REFUSED_FOR
            return
        finally:
            archive.unlink(missing_ok=True)
        self.counts.installed += 1
        self._deliverer.close()
        self._use(bundle)

    def _collect_work(self) -> None:
        """Send finished work, and begin the next."""
        if self._running is not None and self._running[1].done():
            (task, future), self._running = self._running, None
            self._finish(task, future)
        if self._running is None and self._ready and self._work is not None:
            task, state = self._ready.pop(0)
            self._running = (task, self.executor.submit(self._work.do, task, state))

    def _finish(self, task: RoundTask, future: Future[Message]) -> None:
        """Put an update into the outbox; only then is its task done."""
        try:
            update = future.result()
            self._deliverer.send(update, expires=task.deadline)
        except FedtailorError as error:
            LOGGER.warning("%s: round %d could not be done: %s", self.identity.device, task.round, error.sentence())
        else:
            self.counts.updates += 1
            self.bundles.used()
        with self.memory.transaction():
            self.memory.finish(task)

    def _settled(self, settled: Settled) -> None:
        """Note what the coordinator said to a message."""
        receipt = settled.receipt
        if receipt is not None and receipt.accepted:
            self.counts.accepted += 1
            return
        code, reason = _why(receipt)
        self.counts.refused[code] = self.counts.refused.get(code, 0) + 1
        LOGGER.warning("%s: a %s does not count: %s: %s", self.identity.device, settled.waiting.kind, code, reason)


def _why(receipt: Receipt | None) -> tuple[str, str]:
    """Return code and sentence of a message that does not count."""
    return ("expired", "no answer came before its time was over") if receipt is None else (str(receipt.code), receipt.reason)
