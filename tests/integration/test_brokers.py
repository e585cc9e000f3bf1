"""One connection over two real brokers: amqtt (MQTT 3.1.1), which we embed, and mosquitto (MQTT 5)."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import paho.mqtt.publish as paho_publish
import pytest

from protocol.broker import EmbeddedBroker
from protocol.broker_address import BrokerAddress, parse_broker
from protocol.errors import BrokerUnreachableError, ConnectionLostError, OversizeMessageError, TransportError
from protocol.mqtt import MAXIMUM_PAYLOAD_BYTES, Connection, Received
from tests.brokers import ROOT, Broker, running

pytestmark = pytest.mark.broker
TOPIC = "fedtailor/v1/demo/all/down"


def mosquitto(folder: Path, settings: str) -> Broker:
    return Broker("mosquitto", folder, settings)


def test_a_message_arrives_and_both_sides_count_the_same_bytes(broker: Broker) -> None:
    payload = bytes(range(256)) * 4
    with Connection(broker.address, "receiver", (TOPIC,)) as receiver, Connection(broker.address, "sender") as sender:
        sender.publish(TOPIC, payload)
        assert receiver.receive(5) == Received(TOPIC, payload)
        assert receiver.receive(0.05) is None
        # fixed header of three bytes, length and text of the topic, packet identifier, payload
        assert sender.bytes_up == receiver.bytes_down == 3 + 2 + len(TOPIC) + 2 + len(payload)
        assert sender.bytes_down == receiver.bytes_up == 0


def test_only_what_is_subscribed_arrives(broker: Broker) -> None:
    filters = ("fedtailor/v1/demo/devices/+/up", "fedtailor/v1/demo/all/prototypes")
    with Connection(broker.address, "receiver", filters) as receiver, Connection(broker.address, "sender") as sender:
        for topic in ("fedtailor/v1/demo/devices/a/up", "fedtailor/v1/demo/devices/a/down", "fedtailor/v1/demo/all/prototypes"):
            sender.publish(topic, b"x")
        arrived = {message.topic for message in (receiver.receive(5), receiver.receive(5)) if message}
        assert arrived == {"fedtailor/v1/demo/devices/a/up", "fedtailor/v1/demo/all/prototypes"}
        assert receiver.receive(0.05) is None


def test_a_retained_message_waits_for_those_who_come_later(broker: Broker) -> None:
    topic = "fedtailor/v1/late/all/prototypes"
    with Connection(broker.address, "sender") as sender:
        sender.publish(topic, b"old", retain=True)
        sender.publish(topic, b"new", retain=True)
        sender.publish(f"{topic}/more", b"for others", retain=True)
    with Connection(broker.address, "late", (topic,)) as late:
        assert late.receive(5) == Received(topic, b"new")
        assert late.receive(0.1) is None
    with Connection(broker.address, "other", (TOPIC,)) as other:
        assert other.receive(0.1) is None
    with Connection(broker.address, "sender") as sender:
        for retained in (topic, f"{topic}/more"):
            sender.publish(retained, b"", retain=True)  # leaves nothing behind for the next test


def test_the_largest_message_passes_and_a_larger_one_does_not(broker: Broker) -> None:
    with Connection(broker.address, "receiver", (TOPIC,)) as receiver, Connection(broker.address, "sender") as sender:
        with pytest.raises(OversizeMessageError):
            sender.publish(TOPIC, bytes(MAXIMUM_PAYLOAD_BYTES + 1))
        assert sender.bytes_up == 0
        # a stranger without our limits: what it sends is dropped, and the connection lives on
        paho_publish.single(TOPIC, bytes(MAXIMUM_PAYLOAD_BYTES + 1), qos=1, hostname="127.0.0.1", port=broker.port)
        sender.publish(TOPIC, bytes(MAXIMUM_PAYLOAD_BYTES))
        received = receiver.receive(5)
        assert received is not None
        assert len(received.payload) == MAXIMUM_PAYLOAD_BYTES
        assert receiver.dropped >= 1


def test_many_messages_from_many_threads_all_arrive(broker: Broker) -> None:
    def send(number: int) -> None:
        with Connection(broker.address, f"sender-{number}") as sender:
            for place in range(20):
                sender.publish(TOPIC, f"{number} {place}".encode())

    with Connection(broker.address, "receiver", (TOPIC,)) as receiver:
        threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        arrived = {received.payload for _ in range(60) if (received := receiver.receive(10))}
        for thread in threads:
            thread.join()
    assert arrived == {f"{number} {place}".encode() for number in range(3) for place in range(20)}


def test_a_broker_that_comes_back_is_found_again(kind: str, tmp_path: Path) -> None:
    with (
        running(Broker(kind, tmp_path)) as broker,
        Connection(broker.address, "receiver", (TOPIC,)) as receiver,
        Connection(broker.address, "sender") as sender,
    ):
        broker.stop()
        with pytest.raises(ConnectionLostError):
            sender.publish(TOPIC, b"lost", deadline_seconds=0.3)
        broker.start()
        deadline, received = time.monotonic() + 30, None
        while received is None and time.monotonic() < deadline:  # the receiver's subscription may come after the message
            sender.publish(TOPIC, b"after", deadline_seconds=30)
            received = receiver.receive(0.5)
        assert received == Received(TOPIC, b"after")


def test_a_connection_waits_for_a_broker_that_starts_late(kind: str, tmp_path: Path) -> None:
    broker = Broker(kind, tmp_path)
    late = threading.Timer(0.5, broker.start)
    late.start()
    try:
        with Connection(broker.address, "early", deadline_seconds=20) as early:
            early.publish(TOPIC, b"x")
    finally:
        late.join()
        broker.stop()


@pytest.mark.parametrize("silent", [False, True], ids=["nobody listens", "somebody listens and says nothing"])
def test_an_unreachable_broker_is_one_error_by_the_deadline(silent: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not silent:
            server.close()
        before = time.monotonic()
        with (
            pytest.raises(BrokerUnreachableError, match="is the broker running"),
            Connection(BrokerAddress("127.0.0.1", port), "a", (), 1.0),
        ):
            pass
        assert time.monotonic() - before < 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("mqtt-", "paho"))]


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid"])
def test_a_host_that_does_not_exist_is_one_error(host: str) -> None:
    with pytest.raises(BrokerUnreachableError), Connection(BrokerAddress(host, 1883), "a", (), 1.0):
        pass


def test_a_refused_login_is_told_at_once(tmp_path: Path) -> None:
    with running(mosquitto(tmp_path, "allow_anonymous false")) as broker:
        before = time.monotonic()
        with pytest.raises(BrokerUnreachableError, match=r"(?i)not authori"), Connection(broker.address, "a", (), 20):
            pass
        assert time.monotonic() - before < 5


def test_a_refused_topic_is_told(tmp_path: Path) -> None:
    (tmp_path / "acl").write_text(f"topic read {TOPIC}\n")
    with (
        running(mosquitto(tmp_path, f"allow_anonymous true\nacl_file {tmp_path / 'acl'}")) as broker,
        Connection(broker.address, "a", (TOPIC,)) as connection,
        pytest.raises(TransportError, match="refused"),
    ):
        connection.publish(TOPIC, b"x", deadline_seconds=5)


def test_a_message_that_the_broker_cannot_stand_does_not_block_the_next(tmp_path: Path) -> None:
    """With a message size limit, mosquitto 2.0 answers in a way that breaks the connection, every time it is sent again."""
    with (
        running(mosquitto(tmp_path, "allow_anonymous true\nmessage_size_limit 1000")) as broker,
        Connection(broker.address, "a", (TOPIC,)) as connection,
    ):
        with pytest.raises(TransportError):
            connection.publish(TOPIC, bytes(2000), deadline_seconds=20)
        connection.publish(TOPIC, b"small", deadline_seconds=10)
        assert connection.receive(5) == Received(TOPIC, b"small")


@pytest.fixture
def with_amqtt(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("amqtt", reason='needs amqtt: pip install "fedtailor[broker]"')
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_the_embedded_broker_serves_and_stops(with_amqtt: None) -> None:
    with EmbeddedBroker() as embedded:
        process = embedded._process
        assert process is not None
        with Connection(parse_broker(embedded.url), "a", (TOPIC,)) as connection:
            connection.publish(TOPIC, b"x")
            assert connection.receive(5) == Received(TOPIC, b"x")
    assert process.returncode == 0  # it ended by itself, with nothing to complain about
    assert not listens(embedded.port)


def test_the_embedded_broker_ends_with_its_parent(with_amqtt: None) -> None:
    code = "import protocol.broker as b, os; e = b.EmbeddedBroker().__enter__(); print(e.port, e._process.pid, flush=True); os._exit(1)"
    parent = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    port, process = map(int, parent.stdout.split())
    deadline = time.monotonic() + 10
    while listens(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not listens(port), f"process {process} still serves"


def test_an_embedded_broker_that_cannot_start_says_why(with_amqtt: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    embedded = EmbeddedBroker()
    with pytest.raises(BrokerUnreachableError, match="did not start"):
        embedded.__enter__()
    assert embedded._process is None


def test_a_taken_port_ends_the_program_with_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "protocol.broker", "--port", str(taken.getsockname()[1])]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 10
    assert ended.stderr.startswith("error: cannot listen on 127.0.0.1:")
    assert ended.stderr.count("\n") == 1
