"""The embedded broker: amqtt in a child process, for demos and first tries. It speaks MQTT 3.1.1 and is no production broker."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from types import TracebackType
from typing import IO

from protocol.errors import BrokerUnreachableError, FedtailorError, InputError, MissingExtraError

LOOPBACK = "127.0.0.1"
START_SECONDS = 20.0
LISTENING = "listening"  # what the child says once the port is its own
STOP_SECONDS = 5.0


def serve(host: str, port: int, on_ready: Callable[[], None], *, end_with_stdin: bool = False) -> None:
    """Run the broker until SIGTERM or SIGINT, or until standard input closes.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        on_ready: Called once the port is open.
        end_with_stdin: Whether a closed standard input ends it: a parent that dies takes its broker along.

    Raises:
        MissingExtraError: amqtt is not installed.
        InputError: The port is taken or not allowed.
    """
    _check_port(host, port)
    try:
        from amqtt.broker import Broker
    except ModuleNotFoundError as error:
        raise MissingExtraError("the embedded broker needs amqtt", hint='pip install "fedtailor[broker]"') from error

    async def run() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        if end_with_stdin:
            threading.Thread(target=_wait_for_end_of_stdin, args=(loop, stopped), daemon=True).start()
        broker = Broker(_configuration(host, port))
        await broker.start()
        on_ready()
        await stopped.wait()
        await broker.shutdown()

    asyncio.run(run())


def _configuration(host: str, port: int) -> dict[str, object]:
    """Return amqtt's configuration: one listener, anybody may connect."""
    return {
        "listeners": {"default": {"type": "tcp", "bind": f"{host}:{port}"}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }


def _check_port(host: str, port: int) -> None:
    """Refuse a port that cannot be listened on, in one sentence."""
    try:
        with socket.create_server((host, port)):
            return
    except OSError as error:
        raise InputError(f"cannot listen on {host}:{port}", got=error.strerror, hint="choose another --port") from error


def _wait_for_end_of_stdin(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """Set the event when standard input closes."""
    # Not through sys.stdin: a thread that waits inside a buffered reader makes the interpreter abort when it ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    with contextlib.suppress(RuntimeError):  # the loop may have ended by itself
        loop.call_soon_threadsafe(stopped.set)


class EmbeddedBroker:
    """An embedded broker in a child process, running inside a ``with`` block on a free loopback port."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the broker's URL."""
        return f"mqtt://{LOOPBACK}:{self.port}"

    def __enter__(self) -> EmbeddedBroker:
        """Start the child and wait until it listens.

        Raises:
            BrokerUnreachableError: It did not come up.
        """
        with socket.create_server((LOOPBACK, 0)) as free:
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "protocol.broker", "--host", LOOPBACK, "--port", str(self.port), "--end-with-stdin"]
        # Not a pipe: nobody reads it while all is well, and a full pipe would stop the broker.
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors)
        try:
            self._wait_until_listening()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop the child."""
        self.stop()

    def stop(self) -> None:
        """Stop the child, gently at first."""
        process, self._process = self._process, None
        errors, self._errors = self._errors, None
        if errors is not None:
            errors.close()
        if process is None:
            return
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def _wait_until_listening(self) -> None:
        """Return when the child says that it listens; that a port answers could be anybody's doing."""
        if self._process is not None and self._process.stdout is not None:
            readable, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
            if readable and self._process.stdout.readline().strip() == LISTENING.encode():
                return
        lines: list[bytes] = []
        if self._errors is not None:
            self._errors.seek(0)
            lines = self._errors.read().strip().splitlines()
        reason = lines[-1].decode(errors="replace") if lines else "no answer"
        raise BrokerUnreachableError("the embedded broker did not start", got=reason)


def _say_that_it_listens() -> None:
    """Tell the parent."""
    sys.stdout.write(f"{LISTENING}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the broker as a program of its own."""
    parser = argparse.ArgumentParser(description="Run the embedded MQTT broker.")
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--end-with-stdin", action="store_true")
    arguments = parser.parse_args()
    try:
        serve(arguments.host, arguments.port, _say_that_it_listens, end_with_stdin=arguments.end_with_stdin)
    except FedtailorError as error:
        sys.stderr.write(f"error: {error.sentence()}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
