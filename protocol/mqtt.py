"""The one module that touches paho-mqtt: a connection that comes back, with a deadline on every wait.

What paho leaves to its user is done here. A supervising thread connects again after every loss, waiting with full
jitter; subscriptions are made anew each time; publishing happens only while connected, at QoS 1, and reads the broker's
reason code; callbacks only note things and never raise. MQTT 5 is tried first, then 3.1.1.
"""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from protocol.broker_address import BrokerAddress
from protocol.errors import BrokerUnreachableError, ConnectionLostError, DeadlineError, OversizeMessageError, TransportError

PROTOCOLS = (MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311)
MAXIMUM_PAYLOAD_BYTES = 256 * 1024  # of one PUBLISH: a message, or a chunk of large content
QUEUE_LENGTH = 16_384
KEEPALIVE_SECONDS = 60
ATTEMPT_SECONDS = 5.0
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 60.0
STABLE_SECONDS = 10.0
MOST_LOSSES = 3
FAILURE = 0x80  # reason codes from here on say no
UNSUPPORTED_VERSION = 0x84
UNHEARD_BEFORE_ANOTHER_VERSION = 2  # a broker that does not know a version may just hang up; one cut may be the network
NOT_AUTHORISED = (0x86, 0x87, 0x8A)


@dataclass(frozen=True)
class Received:
    """One delivered message."""

    topic: str
    payload: bytes


class Connection:
    """A connection to a broker, open inside a ``with`` block.

    ``bytes_up`` and ``bytes_down`` count PUBLISH packets: fixed header, topic and payload. ``dropped`` counts messages
    that were too large, that no subscription asked for, or that came faster than they were received.

    Args:
        address: The broker.
        client_id: Name of this client, unique at the broker.
        subscriptions: Topic filters to receive.
        deadline_seconds: How long connecting may take.
    """

    def __init__(self, address: BrokerAddress, client_id: str, subscriptions: tuple[str, ...] = (), deadline_seconds: float = 10.0) -> None:
        self.address = address
        self.bytes_up = 0
        self.bytes_down = 0
        self.dropped = 0
        self._client_id = client_id
        self._subscriptions = subscriptions
        self._deadline_seconds = deadline_seconds
        self._inbox: queue.Queue[Received] = queue.Queue(QUEUE_LENGTH)
        self._state = threading.Condition()
        self._ready = self._became_ready = self._was_ever_ready = self._answered = False
        self.reconnects = 0
        self._down = threading.Event()
        self._closing = threading.Event()
        self._final_refusal = threading.Event()
        self._refusal = "no answer"
        self._unheard = 0  # connections in a row that the broker closed without an answer to CONNECT
        self._version_refused = False
        self._acknowledged: dict[tuple[paho.Client, int], int] = {}  # numbers begin anew with each client
        self._forgotten: set[tuple[paho.Client, int]] = set()
        self._client: paho.Client | None = None
        self._supervisor = threading.Thread(target=self._supervise, name=f"mqtt-{client_id}", daemon=True)

    def __enter__(self) -> Connection:
        """Connect and subscribe.

        Raises:
            BrokerUnreachableError: The broker did not accept the connection in time.
        """
        self._supervisor.start()
        with self._state:
            self._state.wait_for(lambda: self._ready or self._final_refusal.is_set(), self._deadline_seconds)
            if self._ready:
                return self
        refused = self._final_refusal.is_set()
        self.close()
        if refused:
            raise BrokerUnreachableError(f"{self.address} refuses this client", got=self._refusal, hint="look at user, password and rights")
        what = f"no connection to {self.address} within {self._deadline_seconds:g} s"
        raise BrokerUnreachableError(what, got=self._refusal, hint="is the broker running, and is its URL right?")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Disconnect."""
        self.close()

    def close(self) -> None:
        """Disconnect and end the threads."""
        with self._state:
            self._closing.set()
            self._down.set()
            self._state.notify_all()
        self._supervisor.join(2 * ATTEMPT_SECONDS)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, deadline_seconds: float = 10.0) -> None:
        """Send one message and wait until the broker has it. Whether the receiver has it, only a receipt can tell.

        Raises:
            OversizeMessageError: Larger than this protocol allows; nothing is sent.
            ConnectionLostError: There is no connection and none came back in time, or this message breaks it each time.
            DeadlineError: The broker did not acknowledge in time.
            TransportError: The broker refused the message.
        """
        if len(payload) > MAXIMUM_PAYLOAD_BYTES:
            raise OversizeMessageError(
                "a message is too large to send", expected=f"at most {MAXIMUM_PAYLOAD_BYTES} bytes", got=len(payload)
            )
        deadline = time.monotonic() + deadline_seconds
        for _ in range(MOST_LOSSES):
            code = self._publish_once(topic, payload, retain, deadline)
            if code is None:
                continue  # the connection broke before the answer; the receiver drops what comes twice
            if code >= FAILURE:
                reason = f"reason code 0x{code:02x}"
                raise TransportError(f"{self.address} refused a message on {topic}", got=reason, hint="look at its access rules")
            return
        hint = "the broker may refuse messages of this size or on this topic"
        raise ConnectionLostError(f"the connection to {self.address} broke {MOST_LOSSES} times on one message", hint=hint)

    def _publish_once(self, topic: str, payload: bytes, retain: bool, deadline: float) -> int | None:
        """Return the broker's reason code, or None when the connection broke before it came."""
        with self._state:
            ready = self._state.wait_for(lambda: self._ready, max(0.0, deadline - time.monotonic()))
            client = self._client
        if not ready or client is None:
            raise ConnectionLostError(f"the connection to {self.address} is lost", got=self._refusal, hint="look at the broker")
        # Outside the lock: paho holds a lock of its own here, and the same one while it calls _on_publish.
        number = client.publish(topic, payload, qos=1, retain=retain).mid
        with self._state:
            self.bytes_up += _publish_bytes(topic, payload)
            acknowledged, key = self._acknowledged, (client, number)
            answered = self._state.wait_for(
                lambda: key in acknowledged or not self._ready or self._client is not client, max(0.0, deadline - time.monotonic())
            )
            if not answered:
                self._forgotten.add(key)  # an answer that comes later must not answer another message
                raise DeadlineError(f"{self.address} did not acknowledge a message", expected="an answer before the deadline")
            return acknowledged.pop(key, None)

    def publish_nowait(self, topic: str, payload: bytes, *, deadline_seconds: float = 10.0) -> None:
        """Send one message and do not wait for the broker's answer."""
        if len(payload) > MAXIMUM_PAYLOAD_BYTES:
            raise OversizeMessageError("a message is too large", expected=f"at most {MAXIMUM_PAYLOAD_BYTES} bytes", got=len(payload))
        with self._state:
            client = self._client if self._ready else None
        if client is None:
            raise ConnectionLostError(f"the connection to {self.address} is lost", got=self._refusal)
        number = client.publish(topic, payload, qos=1).mid
        with self._state:
            self.bytes_up += _publish_bytes(topic, payload)
            self._forgotten.add((client, number))

    @property
    def connected(self) -> bool:
        """Tell whether there is a connection now."""
        return self._ready

    @property
    def window(self) -> int:
        """Return how many messages may be unacknowledged at once."""
        return 20

    @property
    def maximum_payload(self) -> int:
        """Return the most bytes of one payload."""
        return MAXIMUM_PAYLOAD_BYTES

    def receive(self, deadline_seconds: float) -> Received | None:
        """Return the next message, or None when none came in time."""
        try:
            return self._inbox.get(timeout=max(0.0, deadline_seconds))
        except queue.Empty:
            return None

    def _supervise(self) -> None:
        """Keep a connection until closed; runs in its own thread."""
        protocols = itertools.cycle(PROTOCOLS)
        protocol, wait = next(protocols), FIRST_WAIT_SECONDS
        while not self._closing.is_set() and not self._final_refusal.is_set():
            began = time.monotonic()
            was_ready = self._live_once(protocol)
            if self._version_refused or self._unheard >= UNHEARD_BEFORE_ANOTHER_VERSION:
                protocol, self._unheard = next(protocols), 0
                continue
            if self._unheard:
                continue
            lasted = time.monotonic() - began
            # Two clients of one name push each other out at once: a short life is no reason to hurry.
            longest = 2.0 if was_ready else LONGEST_WAIT_SECONDS
            wait = FIRST_WAIT_SECONDS if was_ready and lasted > STABLE_SECONDS else min(2 * wait, longest)
            self._closing.wait(random.uniform(0, wait))  # noqa: S311  # full jitter spreads a fleet; it is no secret

    def _live_once(self, protocol: MQTTProtocolVersion) -> bool:
        """Hold one network connection until it breaks, and tell whether it was ever ready."""
        self._down.clear()
        self._version_refused = self._answered = self._became_ready = False
        try:
            client = self._make_client(protocol)
            client.connect(self.address.host, self.address.port, KEEPALIVE_SECONDS)
        except (OSError, ValueError) as error:  # ValueError: a host name that cannot be encoded, a user name that is too long
            self._refusal = str(error)
            return False
        with self._state:
            self._client = client
            self._acknowledged.clear()
            self._forgotten.clear()
        client.loop_start()
        with self._state:
            self._state.wait_for(lambda: self._became_ready or self._down.is_set() or self._closing.is_set(), ATTEMPT_SECONDS)
            was_ready = self._became_ready  # even if it is over by now
            closed_unheard = self._down.is_set() and not self._answered and not self._closing.is_set()
            self._unheard = self._unheard + 1 if closed_unheard and not self._was_ever_ready else 0
        if was_ready and not self._closing.is_set():  # closing may have come before the event was cleared above
            self._down.wait()
        client.disconnect()
        client.loop_stop()
        with self._state:
            self._ready = False
        return was_ready

    def _make_client(self, protocol: MQTTProtocolVersion) -> paho.Client:
        """Return a client of paho with our callbacks."""
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=self._client_id, protocol=protocol, reconnect_on_failure=False)
        client.disable_logger()  # it calls an ordinary end of a connection an error, on standard error
        client.connect_timeout = ATTEMPT_SECONDS
        client.suppress_exceptions = True  # an exception in a callback would end paho's thread without a word
        if self.address.tls:
            client.tls_set()
        if self.address.username is not None:
            client.username_pw_set(self.address.username, self.address.password)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        return client

    def _on_connect(self, client: paho.Client, data: Any, flags: Any, code: Any, properties: Any) -> None:
        """Subscribe, or note why the broker refused."""
        self._answered = True
        self._version_refused = code.value == UNSUPPORTED_VERSION and not self._was_ever_ready
        if code.value >= FAILURE:
            self._note_refusal(code)
        elif self._subscriptions:
            client.subscribe([(topic, 1) for topic in self._subscriptions])
        else:
            self._note_ready()

    def _on_subscribe(self, client: paho.Client, data: Any, number: int, codes: list[Any], properties: Any) -> None:
        """Note that messages will come, or why not."""
        refused = [code for code in codes if code.value >= FAILURE]
        if refused:
            self._note_refusal(refused[0])
        else:
            self._note_ready()

    def _on_disconnect(self, client: paho.Client, data: Any, flags: Any, code: Any, properties: Any) -> None:
        """Note that the connection is gone."""
        with self._state:
            self._ready = False
            self._down.set()
            self._state.notify_all()

    def _on_message(self, client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
        """Keep a message for ``receive``, unless it is too large, not asked for, or one too many."""
        payload = bytes(message.payload)
        self.bytes_down += _publish_bytes(message.topic, payload)
        # amqtt greets a new client with the retained messages that others have subscribed to.
        asked_for = any(paho.topic_matches_sub(subscription, message.topic) for subscription in self._subscriptions)
        if len(payload) > MAXIMUM_PAYLOAD_BYTES or not asked_for:
            self.dropped += 1
            return
        try:
            self._inbox.put_nowait(Received(message.topic, payload))
        except queue.Full:
            self.dropped += 1

    def _on_publish(self, client: paho.Client, data: Any, number: int, code: Any, properties: Any) -> None:
        """Note the broker's answer to a message."""
        with self._state:
            if (client, number) in self._forgotten:
                self._forgotten.discard((client, number))
                return
            self._acknowledged[client, number] = code.value
            self._state.notify_all()

    def _note_ready(self) -> None:
        """Wake those who wait for a connection."""
        with self._state:
            self._ready = self._became_ready = self._was_ever_ready = True
            self.reconnects += 1
            self._state.notify_all()

    def _note_refusal(self, code: Any) -> None:
        """Keep a refusal for the error message; at the beginning, one about rights will not change by trying again."""
        with self._state:
            self._refusal = f"{code} (0x{code.value:02x})"
            if code.value in NOT_AUTHORISED and not self._was_ever_ready:
                self._final_refusal.set()
            self._down.set()
            self._state.notify_all()


def _publish_bytes(topic: str, payload: bytes) -> int:
    """Return the size of a PUBLISH packet at QoS 1, properties aside."""
    remaining = 2 + len(topic.encode()) + 2 + len(payload)
    length_digits = 1 if remaining < 128 else 2 if remaining < 16384 else 3
    return 1 + length_digits + remaining
