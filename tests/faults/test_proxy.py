"""The proxy does what its plan says: checked with plain sockets and with paho, on a real broker."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt import Connection
from tests.brokers import Broker, running
from tests.faults.faults import Faults
from tests.faults.packets import Publish, Splitter, kind_of, remaining_length
from tests.faults.proxy import FaultProxy, peak

pytestmark = pytest.mark.broker


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.echo, args=(connection,), daemon=True).start()

    def echo(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.server.close()


def read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := connection.recv(65536)):
        data += piece
    return data


def trickle(connection: socket.socket, pieces: int) -> None:
    for _ in range(pieces):
        connection.sendall(bytes(10))
        time.sleep(0.005)


@pytest.mark.parametrize("faults", [Faults(), Faults(slices=(1, 7)), Faults(latency=(0.0, 0.05)), Faults(swallow=1.0)])
def test_bytes_arrive_whole_and_in_order(echo: Echo, faults: Faults) -> None:
    data = bytes(range(256)) * 20
    with FaultProxy(echo.port, faults) as proxy, socket.create_connection(("127.0.0.1", proxy.port), 10) as connection:
        connection.sendall(data)
        assert read(connection, len(data)) == data
        assert proxy.counts()["bytes_up"] == len(data)


def test_latency_and_speed_take_their_time(echo: Echo) -> None:
    with FaultProxy(echo.port, Faults(latency=(0.1, 0.1))) as proxy, socket.create_connection(("127.0.0.1", proxy.port), 10) as connection:
        before = time.monotonic()
        connection.sendall(b"x")
        assert read(connection, 1) == b"x"
        assert time.monotonic() - before >= 0.2
        proxy.change(Faults(bytes_per_second=10_000))
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as slow:
            before = time.monotonic()
            slow.sendall(bytes(4000))
            assert len(read(slow, 4000)) == 4000
            assert 0.4 <= time.monotonic() - before < 2


def test_resets_and_cuts_end_a_connection_with_an_error(echo: Echo) -> None:
    with FaultProxy(echo.port, Faults(reset_every=(0.1, 0.2)), seed=3) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as connection, pytest.raises(ConnectionResetError):
            read(connection, 1)
        proxy.change(Faults(cut_after=(100, 200)))
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as connection, pytest.raises(OSError):
            trickle(connection, 1000)
        proxy.change(Faults())
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as connection:
            connection.sendall(b"x")
            assert read(connection, 1) == b"x"
            proxy.reset_all()
            with pytest.raises(ConnectionResetError):
                read(connection, 1)
        counts = proxy.counts()
        assert (counts["resets"], counts["cuts"], counts["connections"], counts["errors"]) == (2, 1, 3, 0)


def test_a_black_hole_swallows_nothing_and_says_nothing(echo: Echo) -> None:
    with FaultProxy(echo.port) as proxy, socket.create_connection(("127.0.0.1", proxy.port), 10) as connection:
        proxy.black_hole(closed=True)
        connection.sendall(b"x")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        proxy.black_hole(closed=False)
        connection.settimeout(10)
        assert connection.recv(1) == b"x"


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(Broker("mosquitto", tmp_path_factory.mktemp("broker"))) as broker:
        yield broker


def exchange(broker: Broker, faults: Faults, topics: list[str], name: str) -> tuple[list[tuple[str, bytes]], dict[str, int]]:
    """Publish one message a topic through the proxy and return what arrives without it."""
    got = []
    with (
        FaultProxy(broker.port, faults, seed=5) as proxy,
        Connection(broker.address, f"{name}-receiver", (f"{name}/#",)) as receiver,
        Connection(proxy.address, f"{name}-sender") as sender,
    ):
        for number, topic in enumerate(topics):
            sender.publish(f"{name}/{topic}", f"{number}".encode())
        while received := receiver.receive(0.6):
            got.append((received.topic.partition("/")[2], received.payload))
        return got, proxy.counts()


def test_a_swallowed_message_is_acknowledged_and_never_arrives(mosquitto: Broker) -> None:
    got, counts = exchange(mosquitto, Faults(swallow=0.5), ["a"] * 40, "swallow")
    assert counts["publishes_up"] == 40
    assert 5 < counts["swallowed"] < 35
    assert len(got) == 40 - counts["swallowed"]


def test_the_kth_message_alone_is_dropped(mosquitto: Broker) -> None:
    got, counts = exchange(mosquitto, Faults(drop=(3,), topic="/b"), ["a", "b", "b", "a", "b", "b"], "drop")
    assert [payload for _, payload in got] == [b"0", b"1", b"2", b"3", b"5"]
    assert counts["dropped"] == 1


def test_duplicates_are_fresh_copies(mosquitto: Broker) -> None:
    got, counts = exchange(mosquitto, Faults(duplicate=1.0), ["a", "b"], "duplicate")
    assert got == [("a", b"0"), ("a", b"0"), ("b", b"1"), ("b", b"1")]
    assert counts["duplicated"] == 2


def test_delays_change_the_order_across_topics_only(mosquitto: Broker) -> None:
    got = []
    with (
        FaultProxy(mosquitto.port, Faults(delay=0.5, delay_seconds=(0.1, 0.3)), seed=1) as proxy,
        Connection(proxy.address, "delay-receiver", ("delay/#",)) as receiver,
        Connection(mosquitto.address, "delay-sender") as sender,
    ):
        for number in range(60):
            sender.publish(f"delay/{number % 6}", f"{number}".encode())
        while received := receiver.receive(1.0):
            got.append(int(received.payload))
        assert proxy.counts()["delayed"] > 10
    assert sorted(got) == list(range(60))
    assert got != sorted(got)
    for topic in range(6):
        assert [number for number in got if number % 6 == topic] == list(range(topic, 60, 6))


def test_an_orderly_end_stays_orderly(echo: Echo) -> None:
    with FaultProxy(echo.port, Faults(latency=(0.1, 0.1))) as proxy, socket.create_connection(("127.0.0.1", proxy.port), 10) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert read(connection, 100) == b"last words"


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 40))
def test_packets_are_found_however_the_stream_is_cut(bodies: list[bytes], size: int) -> None:
    packets = [bytes([0x10 * (1 + place % 14)]) + remaining_length(len(body)) + body for place, body in enumerate(bodies)]
    stream, splitter = b"".join(packets), Splitter()
    found = [packet for start in range(0, len(stream), size) for packet in splitter.feed(stream[start : start + size])]
    assert found == packets


def test_a_publish_packet_is_read_and_copied() -> None:
    packet = bytes([0x32, 10]) + b"\0\3a/b" + b"\x12\x34" + b"xyz"
    publish = Publish.read(packet)
    assert (publish.topic, publish.number) == ("a/b", 0x1234)
    assert publish.acknowledgement() == b"\x40\x02\x12\x34"
    assert publish.copy() == bytes([0x30, 8]) + b"\0\3a/bxyz"
    assert kind_of(packet) == 3


def test_the_peak_of_connects() -> None:
    assert peak([]) == 0
    assert peak([0.0, 0.1, 0.2, 5.0, 5.9, 6.0, 6.01]) == 3
    assert peak([0.0, 0.5, 1.0, 1.2]) == 3
