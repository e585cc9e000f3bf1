"""Limits, wills, pings and outages of one connection on a real mosquitto."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.broker import EmbeddedBroker
from protocol.broker_address import BrokerAddress, parse_broker
from protocol.database import open_database
from protocol.delivery import Deliverer
from protocol.delivery_events import Fetched
from protocol.envelope import Address, Expectation
from protocol.errors import BrokerUnreachableError, OversizeMessageError
from protocol.inbox import SCHEMA, Inbox
from protocol.keys import PrivateKey
from protocol.mqtt import Connection, Received
from protocol.mqtt_limits import MAXIMUM_PAYLOAD_BYTES
from protocol.mqtt_version import UNSUPPORTED_VERSION
from protocol.outbox import Outbox
from protocol.topics import COORDINATOR, CoordinatorRoutes, DeviceRoutes, Topics
from tests.brokers import ROOT, Broker, running
from tests.faults.faults import Faults
from tests.faults.proxy import FaultProxy, peak

pytestmark = pytest.mark.broker
TOPIC = "fedtailor/v1/demo/all/down"
TOPICS = Topics("demo")
KEYS = {COORDINATOR: PrivateKey(bytes(range(32))), "pi-1": PrivateKey(bytes(range(1, 33)))}


def broker_with(folder: Path, *settings: str) -> Broker:
    return Broker("mosquitto", folder, "\n".join(("allow_anonymous true", *settings)))


def wait_until(happened: Callable[[], bool], seconds: float = 15.0) -> float:
    """Return the seconds until something happened, and fail when it does not."""
    started = time.monotonic()
    while not happened():
        assert time.monotonic() - started < seconds
        time.sleep(0.02)
    return time.monotonic() - started


def test_a_told_packet_size_is_kept_to_without_a_break(tmp_path: Path) -> None:
    with running(broker_with(tmp_path, "max_packet_size 20000")) as broker, Connection(broker.address, "a", (TOPIC,)) as connection:
        assert 19_000 < connection.maximum_payload < 20_000
        with pytest.raises(OversizeMessageError):
            connection.publish(TOPIC, bytes(20_000))
        connection.publish(TOPIC, bytes(connection.maximum_payload))
        received = connection.receive(5)
        assert received is not None
        assert len(received.payload) == connection.maximum_payload
        assert connection.reconnects == 1


def test_an_untold_limit_is_learned_from_two_breaks(tmp_path: Path) -> None:
    with (
        running(broker_with(tmp_path, "message_size_limit 65536")) as broker,
        Connection(broker.address, "a", (TOPIC,)) as connection,
    ):
        with pytest.raises(OversizeMessageError):
            connection.publish(TOPIC, bytes(100_000), deadline_seconds=30)
        assert connection.maximum_payload == 65_536
        assert connection.reconnects in (2, 3)
        connection.publish(TOPIC, bytes(60_000))
        assert connection.receive(5) == Received(TOPIC, bytes(60_000))


def test_a_receive_maximum_of_one(tmp_path: Path) -> None:
    with running(broker_with(tmp_path, "max_inflight_messages 1")) as broker, Connection(broker.address, "a", (TOPIC,)) as connection:
        assert connection.window == 1
        for number in range(100):
            connection.publish_nowait(TOPIC, str(number).encode())
        assert [connection.receive(5) for _ in range(100)] == [Received(TOPIC, str(number).encode()) for number in range(100)]
        assert connection.reconnects == 1


def test_a_broker_without_quality_of_service(tmp_path: Path) -> None:
    with running(broker_with(tmp_path, "max_qos 0")) as broker, Connection(broker.address, "a", (TOPIC,)) as connection:
        connection.publish(TOPIC, b"x")
        assert connection.receive(5) == Received(TOPIC, b"x")
        assert connection.reconnects == 1


def test_the_keepalive_of_the_broker_is_followed(tmp_path: Path) -> None:
    with running(broker_with(tmp_path, "max_keepalive 10")) as broker, Connection(broker.address, "a") as connection:
        assert connection._limits.keepalive == 10
        connection.publish(TOPIC, b"x")


def test_an_older_version_is_spoken_where_only_it_is(tmp_path: Path) -> None:
    with running(broker_with(tmp_path)) as broker:
        connection = Connection(broker.address, "a", (TOPIC,))
        connection._version.refused(UNSUPPORTED_VERSION)  # mosquitto 2.0 cannot be told to refuse MQTT 5
        with connection:
            connection.publish(TOPIC, bytes(MAXIMUM_PAYLOAD_BYTES), retain=True)
            assert connection.receive(5) == Received(TOPIC, bytes(MAXIMUM_PAYLOAD_BYTES))
            assert not connection._limits.heard_of


def test_a_user_and_password_that_the_broker_knows(tmp_path: Path) -> None:
    words, name, password = tmp_path / "passwords", "pi-17", "p@ss/word"
    program = shutil.which("mosquitto_passwd") or pytest.skip("needs mosquitto_passwd")
    subprocess.run([program, "-c", "-b", str(words), name, password], check=True, capture_output=True)
    with running(Broker("mosquitto", tmp_path, f"allow_anonymous false\npassword_file {words}")) as broker:
        address = BrokerAddress("127.0.0.1", broker.port, username=name, password=password)
        with Connection(parse_broker(address.url), "a", (TOPIC,)) as connection:
            connection.publish(TOPIC, b"x")
            assert connection.receive(5) == Received(TOPIC, b"x")
        with pytest.raises(BrokerUnreachableError, match=r"(?i)not authori"), Connection(replace(address, password="no"), "a"):
            pass


def test_a_slow_broker_is_no_older_broker(tmp_path: Path) -> None:
    with (
        running(broker_with(tmp_path)) as broker,
        FaultProxy(broker.port, Faults(latency=(0.8, 0.8))) as proxy,
        Connection(proxy.address, "a", deadline_seconds=30) as connection,
    ):
        assert connection._limits.heard_of  # MQTT 5 was spoken
        assert connection.reconnects == 1


def test_an_enforced_keepalive_is_kept(tmp_path: Path) -> None:
    with running(broker_with(tmp_path)) as broker, Connection(broker.address, "a", keepalive_seconds=1) as connection:
        time.sleep(4)
        assert connection.connected
        assert connection.reconnects == 1


def test_a_network_that_swallows_everything_is_noticed_in_time(tmp_path: Path) -> None:
    with (
        running(broker_with(tmp_path)) as broker,
        FaultProxy(broker.port) as proxy,
        Connection(proxy.address, "a", (TOPIC,), keepalive_seconds=2) as connection,
    ):
        proxy.black_hole(closed=True)
        assert wait_until(lambda: not connection.connected) < 2 * 1.5 + 2
        proxy.black_hole(closed=False)
        connection.publish(TOPIC, b"back", deadline_seconds=30)
        assert connection.receive(5) == Received(TOPIC, b"back")


def test_a_thread_that_hangs_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    with running(broker_with(tmp_path)) as broker, Connection(broker.address, "a", (TOPIC,), keepalive_seconds=1) as connection:
        assert connection._session is not None
        monkeypatch.setattr(connection._session, "_deliver", lambda *_: release.wait(60))
        connection.publish_nowait(TOPIC, b"hang")
        wait_until(lambda: connection.reconnects == 2)
        connection.publish(TOPIC, b"after", deadline_seconds=10)
        assert connection.receive(5) == Received(TOPIC, b"after")
        release.set()


def test_a_will_is_made_anew_and_said_for_the_dead(tmp_path: Path) -> None:
    code = f"""if True:
        import itertools, os, sys, time
        from protocol.broker_address import parse_broker
        from protocol.mqtt import Connection
        numbers = itertools.count(1)
        will = lambda: ({TOPIC!r}, b"dead %d" % next(numbers))
        connection = Connection(parse_broker(sys.argv[1]), "mortal", will=will).__enter__()
        print("ready", flush=True)
        sys.stdin.readline()
        os._exit(9)
    """
    with (
        running(broker_with(tmp_path)) as broker,
        FaultProxy(broker.port) as proxy,
        Connection(broker.address, "heir", (TOPIC,)) as heir,
        subprocess.Popen([sys.executable, "-c", code, proxy.url], cwd=ROOT, stdin=-1, stdout=-1, text=True) as mortal,
    ):
        assert mortal.stdout is not None
        assert mortal.stdin is not None
        mortal.stdout.readline()
        proxy.reset_all()
        assert heir.receive(10) == Received(TOPIC, b"dead 1")
        wait_until(lambda: proxy.counts()["connections"] == 2)
        time.sleep(1)
        mortal.stdin.write("now\n")
        mortal.stdin.flush()
        assert heir.receive(10) == Received(TOPIC, b"dead 2")
    with running(broker_with(tmp_path)) as broker, Connection(broker.address, "later", (TOPIC,)) as later:
        with Connection(broker.address, "orderly", will=lambda: (TOPIC, b"dead")):
            pass
        assert later.receive(0.5) is None  # who says goodbye leaves no will


def test_descriptors_beyond_those_of_select(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("needs 2,048 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with running(broker_with(tmp_path)) as broker, (tmp_path / "file").open("w") as file, ExitStack() as stack:
        for _ in range(1100):
            stack.callback(os.close, os.dup(file.fileno()))
        with Connection(broker.address, "a", (TOPIC,)) as connection:
            connection.publish(TOPIC, b"x")
            assert connection.receive(5) == Received(TOPIC, b"x")


def test_fifty_connections_come_back_spread_out(tmp_path: Path) -> None:
    with running(broker_with(tmp_path)) as broker, FaultProxy(broker.port) as proxy, ExitStack() as stack:
        connections = [stack.enter_context(Connection(proxy.address, f"device-{number}")) for number in range(50)]
        broker.stop()
        wait_until(lambda: not any(each.connected for each in connections))
        time.sleep(2)
        broker.start()
        started = time.monotonic()
        back: dict[str, float] = {}
        while len(back) < len(connections):
            assert time.monotonic() - started < 30
            now = time.monotonic() - started
            back.update({each.client_id: now for each in connections if each.connected and each.client_id not in back})
            time.sleep(0.01)
        most = peak(sorted(back.values()))
        sys.stdout.write(f"all 50 back after {max(back.values()):.1f} s, at most {most} in a second; {proxy.counts()}\n")
        assert most <= 30


def side(name: str, connection: Connection, folder: Path) -> Deliverer:
    folder.mkdir()
    routes = CoordinatorRoutes(TOPICS) if name == COORDINATOR else DeviceRoutes(TOPICS, name)
    database = open_database(folder / "journal.db", SCHEMA)
    expectation = Expectation("demo", "ab" * 32, lambda sender: KEYS[sender].public)
    outbox = Outbox(folder / "outbox.db", 1)
    address = Address("demo", name, 1, "ab" * 32)
    return Deliverer(connection, outbox, Inbox(database), KEYS[name], address, expectation, routes, folder / "content")


@pytest.fixture(params=["max_packet_size 65536", "message_size_limit 65536", "max_packet_size 9000", "message_size_limit 20000"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with running(broker_with(tmp_path, request.param)) as broker:
        yield broker


def test_two_megabytes_arrive_over_a_broker_of_small_packets(small: Broker, tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.write_bytes(bytes(range(256)) * 8192)
    device_routes, expires = DeviceRoutes(TOPICS, "pi-1"), time.time() + 300
    with (
        Connection(small.address, "demo.coordinator", CoordinatorRoutes(TOPICS).subscriptions) as up,
        Connection(small.address, "demo.pi-1", device_routes.subscriptions) as down,
    ):
        coordinator, device = side(COORDINATOR, up, tmp_path / "coordinator"), side("pi-1", down, tmp_path / "device")
        offer = coordinator.serve(content, "bundle", round_number=None, expires=expires)
        device.fetch(offer.transfer, expires=expires)
        until, event = time.monotonic() + 60, None
        while not isinstance(event, Fetched) and time.monotonic() < until:
            coordinator.receive(0.01)
            event = device.receive(0.01)
        assert isinstance(event, Fetched)
        assert event.path.read_bytes() == content.read_bytes()
        for each in (coordinator, device):
            each.close()
            each.outbox.close()


def test_a_will_does_not_keep_a_client_from_a_broker_that_knows_no_mqtt_5() -> None:
    """The broker amqtt takes the will for something longer, and waits for the rest of it."""
    pytest.importorskip("amqtt", reason='needs amqtt: pip install "fedtailor[broker]"')
    with EmbeddedBroker() as embedded:
        address = parse_broker(embedded.url)
        with Connection(address, "a", (TOPIC,), will=lambda: (TOPIC, bytes(600))) as connection:
            connection.publish(TOPIC, b"x")
            assert connection.receive(5) == Received(TOPIC, b"x")
