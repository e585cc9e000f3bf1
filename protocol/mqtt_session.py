"""One network connection to a broker, from connecting to its end; the only module that touches paho-mqtt.

paho parses and writes packets; the loop around it is ours, in a thread of its own. It waits with ``poll``, which knows
every descriptor where paho's ``select`` stops at 1,023, and whatever goes wrong in it ends this session and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from protocol.broker_address import BrokerAddress
from protocol.mqtt_limits import MAXIMUM_PAYLOAD_BYTES, Limits
from protocol.mqtt_tls import explain, explain_alert, tls_context
from protocol.mqtt_version import MQTT_5
from protocol.mqtt_window import FAILURE, Flight, Window

CONNECT_SECONDS = 5.0
POLL_SECONDS = 1.0
FAREWELL_SECONDS = 1.0
PATIENCE = 1.5  # keepalives without a word from the broker
RECEIVE_MAXIMUM = 256
MOST_AT_ONCE = 16  # messages read before anything is written
LARGEST_PACKET_BYTES = MAXIMUM_PAYLOAD_BYTES + 65_536 + 16  # with the longest topic
NOT_AUTHORISED = (0x86, 0x87, 0x8A)
TOO_LARGE = 0x95
QUICK = getattr(socket, "TCP_QUICKACK", None)  # Linux alone has it
Will = Callable[[], "tuple[str, bytes] | None"]


@dataclass(frozen=True)
class Plan:
    """What all sessions of a connection have in common."""

    address: BrokerAddress
    client_id: str
    subscriptions: tuple[str, ...]
    keepalive: int
    will: Will


class Session:
    """One network connection.

    Attributes:
        ready: Whether messages can be sent and will come.
        over: Whether it has ended.
        refusal: Why it ended, in words.
        hint: What to do about it.
        hopeless: Whether trying again as it is will not help.
        code: The broker's refusal upon CONNECT, or None.
        unanswered: Whether the broker closed it upon CONNECT without a word.
        heartbeat: When its thread was last seen at work, on the clock of ``time.monotonic``.
    """

    def __init__(
        self,
        plan: Plan,
        version: int,
        limits: Limits,
        state: threading.Condition,
        deliver: Callable[[str, bytes], None],
        on_ready: Callable[[], None],
    ) -> None:
        self.ready = self.over = self.hopeless = self.unanswered = False
        self.refusal, self.hint = "no answer", ""
        self.code: int | None = None
        self.heartbeat = time.monotonic()
        self.window = Window(state, limits)
        self._plan, self._version, self._limits, self._state = plan, version, limits, state
        self._deliver, self._on_ready = deliver, on_ready
        self._ending = threading.Event()
        self._messages = 0
        self._asked = self._answered = self._too_large = False
        self._awake, self._alarm = socket.socketpair()
        self._alarm.setblocking(False)
        self._client = self._make_client()
        self._thread = threading.Thread(target=self._run, name=f"mqtt-session-{plan.client_id}", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def send(self, topic: str, payload: bytes, *, retain: bool, deadline: float, awaited: bool) -> Flight | None:
        """Hand a message to the network once there is room; None when the connection ended meanwhile.

        Raises:
            DeadlineError: No room came before the deadline.
        """
        if not self.window.enter(len(payload), deadline):
            return None
        flight = Flight(len(payload), awaited)
        try:
            # Not under the connection's lock: paho holds one of its own here, and the same one while it calls _on_publish.
            number = self._client.publish(topic, payload, qos=self._limits.quality, retain=retain).mid
        except BaseException:
            self.window.leave()
            raise
        self.window.depart(number, flight)
        return flight

    def end(self, seconds: float) -> None:
        """End it in order if it can be had within some seconds, and otherwise leave its thread to itself."""
        self._ending.set()
        self._ring()
        self._thread.join(seconds)
        if self._thread.is_alive():
            client_socket = self._client.socket()
            with contextlib.suppress(OSError, ValueError):
                if client_socket is not None:
                    with _duplicate(client_socket) as raw:
                        raw.shutdown(socket.SHUT_RDWR)
            self._conclude()

    def _run(self) -> None:
        """Connect, work, end; in the session's own thread."""
        try:
            self._connect()
            self._loop()
        except OSError as error:
            explained = explain(error, self._plan.address)
            self.refusal, self.hint = explained or (str(error), "")
            self.hopeless = isinstance(error, ssl.SSLCertVerificationError)
        except Exception as error:  # noqa: BLE001  # whatever paho, a will or the files of TLS raise ends this session alone
            self.refusal = f"{type(error).__name__}: {error}"
        finally:
            self._close_socket()
            self.unanswered = self._asked and not self._answered and not self._ending.is_set() and not self.hopeless
            self._conclude()
            self._awake.close()
            self._alarm.close()

    def _conclude(self) -> None:
        """Tell everybody that it is over, and learn from a message that was on its way alone."""
        with self._state:
            if self.over:
                return
            self.ready, self.over = False, True
            lost = self.window.close()
            if len(lost) == 1 and not self._ending.is_set():
                self._limits.broke(lost[0], certain=self._too_large)
            self._state.notify_all()

    def _connect(self) -> None:
        """Open the connection and say CONNECT."""
        plan, client = self._plan, self._client
        if plan.address.tls:
            client.tls_set_context(tls_context(plan.address.files))
        will = plan.will()
        if will is not None:
            client.will_set(will[0], will[1], qos=self._limits.quality, retain=True)
        properties = None
        # A broker of MQTT 3.1.1 may take properties for a client id, and wait for the rest of it instead of refusing the version.
        if self._version == MQTT_5 and self._limits.heard_of:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho has no annotation there
            properties.ReceiveMaximum, properties.MaximumPacketSize = RECEIVE_MAXIMUM, LARGEST_PACKET_BYTES
        keepalive = plan.keepalive if not self._limits.keepalive else min(plan.keepalive, self._limits.keepalive)
        client.connect(plan.address.host, plan.address.port, keepalive, properties=properties)

    def _loop(self) -> None:
        """Carry packets both ways until the connection ends."""
        client, poller, misc, heard, until = self._client, select.poll(), 0.0, time.monotonic(), None
        poller.register(self._awake, select.POLLIN)
        while (own := client.socket()) is not None:
            now = self.heartbeat = time.monotonic()
            if self._ending.is_set() and until is None:
                until = now + FAREWELL_SECONDS
                if not self._answered:
                    return
                client.disconnect()
            if (until is not None and now > until) or (client.keepalive and now - heard > PATIENCE * client.keepalive):
                self.refusal = "no answer to a ping"
                return
            if client.want_write():
                client.loop_write()
                own = client.socket()
                if own is None:
                    return
            self._asked = self._asked or not client.want_write()
            if self._readable(poller, own):
                heard = now
                self._read(own)
            if now >= misc:
                misc = now + POLL_SECONDS / 4
                client.loop_misc()

    def _readable(self, poller: select.poll, own: Any) -> bool:
        """Wait until there is something to do, and tell whether it is to read."""
        number: int = own.fileno()
        poller.register(number, select.POLLIN | (select.POLLOUT if self._client.want_write() else 0))
        pending = bool(getattr(own, "pending", int)())  # what TLS has decrypted already
        patience = POLL_SECONDS if not self._client.keepalive else min(POLL_SECONDS, self._client.keepalive / 4)
        events = dict(poller.poll(0 if pending else 1000 * patience))
        if self._awake.fileno() in events:
            self._awake.recv(4096)
        return pending or bool(events.get(number, 0) & ~select.POLLOUT)

    def _read(self, own: Any) -> None:
        """Take packets: paho reads one at a time, and where one message came the next is often there already."""
        for _ in range(MOST_AT_ONCE):
            before = self._messages
            self._client.loop_read()
            if self._messages == before:
                break
        if not self._client.want_write():  # what is written carries the acknowledgement
            _acknowledge_at_once(own)

    def _close_socket(self) -> None:
        """Close what is still open; paho then finds out by itself."""
        own = self._client.socket()
        if own is not None:
            own.close()
            with contextlib.suppress(Exception):  # it reads from a closed socket, to note that it is closed
                self._client.loop_read()

    def _ring(self) -> None:
        """Wake the session's thread."""
        if threading.current_thread() is not self._thread:
            with contextlib.suppress(OSError):  # full, so it will wake; or closed, so it is over
                self._alarm.send(b"x")

    def _make_client(self) -> paho.Client:
        """Return a client of paho with our callbacks."""
        plan = self._plan
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=plan.client_id,
            protocol=MQTTProtocolVersion(self._version),
            transport="tcp" if plan.address.path is None else "websockets",
            reconnect_on_failure=False,
        )
        client.disable_logger()  # it calls an ordinary end of a connection an error, on standard error
        client.connect_timeout = CONNECT_SECONDS
        client.suppress_exceptions = True  # an exception in a callback would leave paho's locks as they are
        client.max_inflight_messages = 0  # our window is the limit
        if plan.address.path is not None:
            client.ws_set_options(path=plan.address.path)
        if plan.address.username is not None:
            client.username_pw_set(plan.address.username, plan.address.password)
        client.on_log = self._on_log
        client.on_socket_open = _send_at_once
        client.on_socket_register_write = lambda *_: self._ring()
        client.on_connect, client.on_subscribe, client.on_disconnect = self._on_connect, self._on_subscribe, self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = lambda _client, _data, number, code, _properties: self.window.answered(number, code.value)
        return client

    def _on_connect(self, client: paho.Client, data: Any, flags: Any, code: Any, properties: Any) -> None:
        """Subscribe, or note why the broker refused."""
        self._answered = True
        if code.value >= FAILURE:
            self.code = code.value
            self._refused(code)
            return
        with self._state:
            self._limits.told(properties if self._version == MQTT_5 else None)
            keepalive = self._limits.keepalive
        if keepalive and client.keepalive > keepalive:  # paho before 2.2 does not look at it: connect anew with it
            self.refusal = "the broker wants another keepalive"
            self._ending.set()
        elif self._plan.subscriptions:
            client.subscribe([(topic, self._limits.quality) for topic in self._plan.subscriptions])
        else:
            self._note_ready()

    def _on_subscribe(self, client: paho.Client, data: Any, number: int, codes: list[Any], properties: Any) -> None:
        """Note that messages will come, or why not."""
        refused = [code for code in codes if code.value >= FAILURE]
        if refused:
            self._refused(refused[0])
            self._ending.set()
        else:
            self._note_ready()

    def _on_disconnect(self, client: paho.Client, data: Any, flags: Any, code: Any, properties: Any) -> None:
        """Note what the broker says about the end."""
        if flags.is_disconnect_packet_from_server:
            self.refusal = f"{code} (0x{code.value:02x})"
            self._too_large = code.value == TOO_LARGE

    def _on_message(self, client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
        """Pass a message on."""
        self._messages += 1
        self._deliver(message.topic, bytes(message.payload))

    def _on_log(self, client: paho.Client, data: Any, level: int, text: str) -> None:
        """Look for what paho tells nobody: that the broker ended TLS, and why."""
        explained = explain_alert(text) if self._plan.address.tls else None
        if explained is not None:
            self.refusal, self.hint = explained
            self.hopeless = True

    def _note_ready(self) -> None:
        """Wake those who wait for a connection."""
        self._client.on_log = None  # it would format a line for each packet
        with self._state:
            self.ready = True
            self._on_ready()
            self._state.notify_all()

    def _refused(self, code: Any) -> None:
        """Keep a refusal for the error message; one about rights will not change by trying again."""
        self.refusal, self.hint = f"{code} (0x{code.value:02x})", "look at user, password and rights"
        self.hopeless = code.value in NOT_AUTHORISED


def _send_at_once(_client: paho.Client, _data: Any, own: Any) -> None:
    """Send small packets without waiting for more: an acknowledgement is small, and the other side waits for it."""
    with contextlib.suppress(OSError), _duplicate(own) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _acknowledge_at_once(own: Any) -> None:
    """Tell the broker's TCP now that its packet came; the kernel forgets this wish after each packet.

    A broker that gathers small packets sends no second PUBACK before the first one is acknowledged, which Linux does after
    40 ms if nothing else is to be sent.
    """
    if QUICK is not None and hasattr(own, "setsockopt"):
        with contextlib.suppress(OSError):
            own.setsockopt(socket.IPPROTO_TCP, QUICK, 1)


def _duplicate(own: Any) -> socket.socket:
    """Return the plain socket below a TLS or WebSocket one, under a descriptor of its own."""
    return socket.socket(fileno=os.dup(own.fileno()))
