"""Real brokers for tests: amqtt (MQTT 3.1.1), which we embed, and mosquitto (MQTT 5)."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.broker_address import BrokerAddress, parse_broker

ROOT = Path(__file__).resolve().parents[1]


def mosquitto_path() -> str:
    """Return where mosquitto is; without it, a test fails in CI and is skipped elsewhere."""
    path = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if path is None and os.environ.get("CI"):
        pytest.fail("mosquitto is missing: apt-get install mosquitto")
    if path is None:
        pytest.skip("mosquitto is missing: apt-get install mosquitto")
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Broker:
    """A broker on one port that a test can stop and start again."""

    def __init__(self, kind: str, folder: Path, settings: str = "allow_anonymous true") -> None:
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None
        if kind == "amqtt":
            self.command = [sys.executable, "-m", "protocol.broker", "--port", str(self.port)]
            return
        configuration = folder / f"mosquitto-{self.port}.conf"
        configuration.write_text(f"listener {self.port} 127.0.0.1\npersistence false\nuser {os.environ.get('USER', 'root')}\n{settings}\n")
        if "protocol websockets" in settings:  # with these alone, mosquitto 2.0.11 believes that it listens nowhere
            with configuration.open("a") as file:
                file.write(f"\nlistener {free_port()} 127.0.0.1\n")
        self.command = [mosquitto_path(), "-c", str(configuration)]

    @property
    def address(self) -> BrokerAddress:
        return parse_broker(self.url)

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        pytest.fail(f"{self.command[0]} did not start")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def running(broker: Broker) -> Iterator[Broker]:
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
