"""Throughput of our connection against a bare pair of paho clients, on one mosquitto, at QoS 1.

    python benchmarks/transport.py --repeat 3

A publisher and a subscriber, each a process of its own; seconds count from the first message to the last at the
subscriber. Both kinds run in turn, so that the machine's other work meets both; the bar is a ratio of 0.7.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from protocol.broker_address import BrokerAddress
from protocol.mqtt import Connection

SIZES = {64 * 1024: 2000, 1024: 10_000}  # bytes of a payload -> messages
TOPIC = "benchmark/transport"
BAR = 0.7
PATIENCE_SECONDS = 120.0
LOOPBACK = "127.0.0.1"


def say(text: str) -> None:
    """Tell the parent."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def ours(role: str, port: int, size: int, count: int) -> None:
    """Be one side of our pair."""
    address = BrokerAddress(LOOPBACK, port)
    with Connection(address, f"ours-{role}", (TOPIC,) if role == "subscriber" else ()) as connection:
        say("ready")
        if role == "publisher":
            for _ in range(count):
                connection.publish_nowait(TOPIC, bytes(size), deadline_seconds=PATIENCE_SECONDS)
            sys.stdin.readline()
            return
        times = []
        for _ in range(count):
            if connection.receive(PATIENCE_SECONDS) is None:
                raise TimeoutError("a message is missing")
            times.append(time.perf_counter())
        say(json.dumps(times[-1] - times[0]))


def bare(role: str, port: int, size: int, count: int) -> None:
    """Be one side of a pair of paho clients as they come."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"bare-{role}", protocol=MQTTProtocolVersion.MQTTv5)
    times: list[float] = []
    client.on_message = lambda *_: times.append(time.perf_counter())
    if role == "subscriber":
        client.on_connect = lambda *_: client.subscribe(TOPIC, 1)
        client.on_subscribe = lambda *_: say("ready")
    else:
        client.on_connect = lambda *_: say("ready")
    client.connect(LOOPBACK, port)
    client.loop_start()
    if role == "publisher":
        while not client.is_connected():
            time.sleep(0.01)
        for _ in range(count):
            client.publish(TOPIC, bytes(size), qos=1)
        sys.stdin.readline()
    else:
        until = time.monotonic() + PATIENCE_SECONDS
        while len(times) < count and time.monotonic() < until:
            time.sleep(0.01)
        say(json.dumps(times[count - 1] - times[0]))
    client.disconnect()
    client.loop_stop()


def measure(kind: str, port: int, size: int, count: int) -> float:
    """Return megabytes a second of one pair."""

    def side(role: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--side", kind, role, str(port), str(size), str(count)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with side("subscriber") as subscriber:
        assert subscriber.stdout is not None  # noqa: S101  # it is a pipe
        subscriber.stdout.readline()
        with side("publisher") as publisher:
            seconds = json.loads(subscriber.stdout.readline())
            publisher.communicate("done\n", timeout=PATIENCE_SECONDS)
    return size * (count - 1) / seconds / 1e6


def compare(port: int, repeat: int) -> list[dict[str, float]]:
    """Return the medians and their ratio for each size."""
    rows = []
    for size, count in SIZES.items():
        pairs = [(measure("ours", port, size, count), measure("bare", port, size, count)) for _ in range(repeat)]
        mine, theirs = (statistics.median(values) for values in zip(*pairs, strict=True))
        rows.append({"bytes": size, "messages": count, "ours_mb_s": mine, "bare_mb_s": theirs, "ratio": mine / theirs})
    return rows


def main() -> None:
    """Start a broker, measure, and print one line a size; exit code 1 below the bar."""
    if sys.argv[1:2] == ["--side"]:
        kind, role, *numbers = sys.argv[2:]
        {"ours": ours, "bare": bare}[kind](role, *map(int, numbers))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    mosquitto = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if mosquitto is None:
        sys.exit("mosquitto is missing: apt-get install mosquitto")
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "mosquitto.conf"
        settings.write_text(f"listener {port} {LOOPBACK}\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n")
        broker = subprocess.Popen([mosquitto, "-c", str(settings)], stderr=subprocess.DEVNULL)
        try:
            time.sleep(1)
            rows = compare(port, arguments.repeat)
        finally:
            broker.terminate()
            broker.wait()
    if arguments.as_json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(
                f"{row['bytes']:>6.0f} bytes: ours {row['ours_mb_s']:.1f} MB/s, bare {row['bare_mb_s']:.1f} MB/s, ratio {row['ratio']:.2f}"
            )
    sys.exit(any(row["ratio"] < BAR for row in rows))


if __name__ == "__main__":
    main()
