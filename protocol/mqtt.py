"""A connection to a broker that comes back, with a deadline on every wait.

A supervising thread holds one session after the other, waiting with full jitter in between, and ends one whose thread
hangs; subscriptions are made anew each time; publishing happens only while connected, at QoS 1, within the broker's
window and limits, and reads its reason code.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import TracebackType

from protocol.broker_address import BrokerAddress
from protocol.errors import BrokerUnreachableError, ConnectionLostError, TransportError
from protocol.mqtt_limits import MAXIMUM_PAYLOAD_BYTES, Limits, publish_bytes
from protocol.mqtt_session import PATIENCE, Plan, Session
from protocol.mqtt_tls import tls_context
from protocol.mqtt_version import VersionChoice
from protocol.mqtt_window import FAILURE
from protocol.topics import matches

__all__ = ["MAXIMUM_PAYLOAD_BYTES", "Connection", "Received"]

QUEUE_LENGTH = 16_384
KEEPALIVE_SECONDS = 60
ATTEMPT_SECONDS = 15.0  # to connect, be answered and subscribe
FIRST_WILL_SECONDS = 3.0  # the same with a will at a broker that was never heard: without one it may answer
END_SECONDS = 2.0
DRAIN_SECONDS = 1.0
FIRST_WAIT_SECONDS = 0.2
LOST_WAIT_SECONDS = 2.0
KNOWN_WAIT_SECONDS = 12.0
LONGEST_WAIT_SECONDS = 60.0
STABLE_SECONDS = 10.0
MOST_LOSSES = 3
HANG_CHECK_SECONDS = 1.0


def _no_will() -> None:
    """Return that the broker has nothing to say for this client."""


@dataclass(frozen=True)
class Received:
    """One delivered message."""

    topic: str
    payload: bytes


@dataclass
class Waits:
    """How long to wait before the next session: full jitter spreads a fleet.

    At most 2 s after a session that was ready, 12 s when an earlier one was, 60 s when none ever was.
    """

    longest: float = FIRST_WAIT_SECONDS
    _known: bool = False

    def next(self, was_ready: bool, lasted: float) -> float:
        """Return the seconds to wait.

        Args:
            was_ready: Whether the session that ended was ever ready.
            lasted: Seconds that it lasted.
        """
        self._known = self._known or was_ready
        bound = LOST_WAIT_SECONDS if was_ready else KNOWN_WAIT_SECONDS if self._known else LONGEST_WAIT_SECONDS
        # Two clients of one name push each other out at once: a short life is no reason to hurry.
        # A known broker that is away is restarting: a fleet that asks for it all the time would not help.
        shortest = LOST_WAIT_SECONDS if self._known and not was_ready else FIRST_WAIT_SECONDS
        brief = was_ready and lasted > STABLE_SECONDS
        self.longest = FIRST_WAIT_SECONDS if brief else min(2 * max(shortest, self.longest), bound)
        return random.uniform(0, self.longest)  # noqa: S311  # it is no secret


@dataclass
class Connection:
    """A connection to a broker, open inside a ``with`` block.

    ``bytes_up`` and ``bytes_down`` count PUBLISH packets: fixed header, topic and payload. ``dropped`` counts messages
    that were too large, that no subscription asked for, or that came faster than they were received.

    Args:
        address: The broker.
        client_id: Name of this client, unique at the broker.
        subscriptions: Topic filters to receive.
        deadline_seconds: How long connecting may take.
        will: Asked at each connecting for topic and payload of what the broker shall publish, retained, when the connection
            is lost; None for nothing.
        keepalive_seconds: Silence after which the broker is asked whether it is there; the broker may want less.
    """

    address: BrokerAddress
    client_id: str
    subscriptions: tuple[str, ...] = ()
    deadline_seconds: float = 10.0
    will: Callable[[], tuple[str, bytes] | None] = _no_will
    keepalive_seconds: int = KEEPALIVE_SECONDS
    bytes_up: int = field(default=0, init=False)
    bytes_down: int = field(default=0, init=False)
    dropped: int = field(default=0, init=False)
    reconnects: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Prepare, and connect to nobody yet."""
        self._plan = Plan(self.address, self.client_id, self.subscriptions, self.keepalive_seconds, self.will)
        self._inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._limits, self._version = Limits(), VersionChoice()
        self._will_unheard = False
        self._closing = threading.Event()
        self._session: Session | None = None
        self._refusal, self._hint, self._hopeless = "no answer", "", False
        self._asked_for = lru_cache(1024)(lambda topic: any(matches(each, topic) for each in self.subscriptions))
        self._supervisor = threading.Thread(target=self._supervise, name=f"mqtt-{self.client_id}", daemon=True)

    def __enter__(self) -> Connection:
        """Connect and subscribe.

        Raises:
            BrokerUnreachableError: The broker did not accept the connection in time.
            InputError: The files for TLS cannot be used.
            KeyFileError: The same of the key.
        """
        if self.address.tls:
            tls_context(self.address.files)  # a wrong file is found now, and not on the way
        self._supervisor.start()
        with self._state:
            self._state.wait_for(lambda: self.connected or self._hopeless, self.deadline_seconds)
            if self.connected:
                return self
        hopeless = self._hopeless
        self.close()
        if hopeless:
            raise BrokerUnreachableError(f"{self.address} refuses this client", got=self._refusal, hint=self._hint)
        what = f"no connection to {self.address} within {self.deadline_seconds:g} s"
        raise BrokerUnreachableError(what, got=self._refusal, hint=self._hint or "is the broker running, and is its URL right?")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Disconnect."""
        self.close()

    def close(self) -> None:
        """Disconnect and end the threads; what was handed over gets a second to arrive."""
        session = self._session
        if session is not None:
            session.window.drain(time.monotonic() + DRAIN_SECONDS)
        with self._state:
            self._closing.set()
            self._state.notify_all()
        self._supervisor.join(2 * END_SECONDS)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, deadline_seconds: float = 10.0) -> None:
        """Send one message and wait until the broker has it. Whether the receiver has it, only a receipt can tell.

        Raises:
            OversizeMessageError: Larger than the broker takes, as far as is known; perhaps this message has taught it.
            ConnectionLostError: There is no connection and none came back in time, or this message breaks it each time.
            DeadlineError: The broker did not acknowledge in time.
            TransportError: The broker refused the message.
        """
        deadline = time.monotonic() + deadline_seconds
        for _ in range(MOST_LOSSES):
            self._limits.check(topic, payload, retain=retain)
            session = self._ready_session(deadline)
            self._limits.check(topic, payload, retain=retain)  # this session may have told other limits
            flight = session.send(topic, payload, retain=retain, deadline=deadline, awaited=True)
            if flight is None:
                continue
            self._count_up(topic, payload)
            code = session.window.wait(flight, deadline)
            if code is None:
                continue  # the connection broke before the answer; the receiver drops what comes twice
            if code >= FAILURE:
                reason = f"reason code 0x{code:02x}"
                raise TransportError(f"{self.address} refused a message on {topic}", got=reason, hint="look at its access rules")
            return
        self._limits.check(topic, payload, retain=retain)
        hint = "the broker may refuse messages of this size or on this topic"
        raise ConnectionLostError(f"the connection to {self.address} broke {MOST_LOSSES} times on one message", hint=hint)

    def publish_nowait(self, topic: str, payload: bytes, *, deadline_seconds: float = 10.0) -> None:
        """Send one message as soon as there is room in the broker's window, and do not wait for its answer.

        Raises:
            OversizeMessageError: Larger than the broker takes, as far as is known.
            ConnectionLostError: There is no connection.
            DeadlineError: No room came in time.
        """
        self._limits.check(topic, payload, retain=False)
        session = self._session
        deadline = time.monotonic() + deadline_seconds
        if session is None or not session.ready or session.send(topic, payload, retain=False, deadline=deadline, awaited=False) is None:
            raise ConnectionLostError(f"the connection to {self.address} is lost", got=self._refusal)
        self._count_up(topic, payload)

    @property
    def connected(self) -> bool:
        """Tell whether there is a connection now."""
        session = self._session
        return session is not None and session.ready

    @property
    def window(self) -> int:
        """Return how many messages may be unacknowledged at once."""
        return self._limits.window

    @property
    def maximum_payload(self) -> int:
        """Return the most bytes of one payload that the broker takes, as far as is known."""
        return self._limits.payload

    def receive(self, deadline_seconds: float) -> Received | None:
        """Return the next message, or None when none came in time."""
        try:
            return self._inbox.get(timeout=max(0.0, deadline_seconds))
        except queue.Empty:
            return None

    def _ready_session(self, deadline: float) -> Session:
        """Return the session, once it is ready."""
        with self._state:
            self._state.wait_for(lambda: self.connected, max(0.0, deadline - time.monotonic()))
            if self._session is None or not self._session.ready:
                raise ConnectionLostError(f"the connection to {self.address} is lost", got=self._refusal, hint="look at the broker")
            return self._session

    def _count_up(self, topic: str, payload: bytes) -> None:
        """Count a packet that was handed over."""
        with self._state:
            self.bytes_up += publish_bytes(topic, payload)

    def _deliver(self, topic: str, payload: bytes) -> None:
        """Keep a message for ``receive``, unless it is too large, not asked for, or one too many."""
        self.bytes_down += publish_bytes(topic, payload)
        # amqtt greets a new client with the retained messages that others have subscribed to.
        if len(payload) > MAXIMUM_PAYLOAD_BYTES or not self._asked_for(topic) or self._inbox.qsize() >= QUEUE_LENGTH:
            self.dropped += 1
        else:
            self._inbox.put(Received(topic, payload))

    def _became_ready(self) -> None:
        """Note another session that is ready."""
        self.reconnects += 1

    def _supervise(self) -> None:
        """Hold one session after the other until closed; runs in its own thread."""
        waits = Waits()
        while not self._closing.is_set() and not self._hopeless:
            began = time.monotonic()
            # amqtt speaks 3.1.1 alone and waits for ever upon a CONNECT of MQTT 5 with a will; to one without it refuses the version.
            plan = replace(self._plan, will=_no_will) if self._will_unheard else self._plan
            session = Session(plan, self._version.version, self._limits, self._state, self._deliver, self._became_ready)
            with self._state:
                self._session = session
            session.start()
            was_ready = self._watch(session)
            session.end(END_SECONDS)
            self._learn(session, was_ready)
            self._closing.wait(waits.next(was_ready, time.monotonic() - began))

    def _watch(self, session: Session) -> bool:
        """Return when a session is over, closing, or hangs, and tell whether it was ever ready."""
        with self._state:
            is_trial = not self.reconnects and not self._will_unheard and self.will is not _no_will
            attempt = FIRST_WILL_SECONDS if is_trial else ATTEMPT_SECONDS
            self._state.wait_for(lambda: session.ready or session.over or self._closing.is_set(), attempt)
            was_ready = session.ready
            patience = max(HANG_CHECK_SECONDS, PATIENCE * self.keepalive_seconds)
            while session.ready and not self._closing.is_set() and time.monotonic() - session.heartbeat < patience:
                self._state.wait_for(lambda: session.over or self._closing.is_set(), min(patience / 3, 15.0))
        return was_ready

    def _learn(self, session: Session, was_ready: bool) -> None:
        """Note what the end of a session says about the broker."""
        self._will_unheard = session.code is None and not was_ready and not self._will_unheard  # with and without one in turn
        if was_ready:
            self._version.accepted()
            self._version.lost()
        elif session.code is not None:
            self._version.refused(session.code)
        elif session.unanswered:
            self._version.closed()
        else:
            self._version.failed()
        with self._state:
            self._refusal, self._hint = session.refusal, session.hint
            # Only at the beginning: a broker that took this client once may be in the middle of a change.
            self._hopeless = session.hopeless and self.reconnects == 0
            self._state.notify_all()
