"""``fedtailor edge simulate-fleet``: hundreds of agents in a few processes, for tests and load."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from edge_runtime.options import TRUSTED
from protocol.broker_options import broker_options, broker_words
from protocol.console import AS_JSON
from protocol.errors import InputError, TransportError
from protocol.keys import PrivateKey

GRACE_SECONDS = 30.0
POLL_SECONDS = 0.1


@click.command(
    "simulate-fleet",
    epilog="Example: fedtailor edge simulate-fleet --bundle bundle/ --trusted release.pub --broker mqtt://hub:1883 --keys keys/ "
    "--create 300 --registry devices/ --processes 2",
)
@click.option("--bundle", type=click.Path(path_type=Path), required=True, help="The bundle that all agents use.")
@TRUSTED
@broker_options()
@click.option("--federation", default="default", show_default=True, help="Name of the federation.")
@click.option("--keys", type=click.Path(path_type=Path), required=True, help="Folder of <device id>.key files; each is an agent.")
@click.option("--create", type=click.IntRange(min=1), help="Make keys of so many devices sim-0000, sim-0001, ... where they are missing.")
@click.option("--registry", type=click.Path(path_type=Path), help="Where the public keys of created devices go.")
@click.option("--device", "devices", multiple=True, help="Only these agents; repeatable.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder with a data folder for each device; without it rounds are rehearsed.")
@click.option("--state", type=click.Path(path_type=Path), help="Folder for the agents' state; in memory if left out.")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Processes to spread the agents over.")
@click.option("--seconds", type=click.FloatRange(min=0), help="End after so many seconds; at SIGTERM if left out.")
@AS_JSON
def simulate_fleet(**options: Any) -> None:
    """Be many agents at once; each has its own key and connection, and all share one bundle."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    if options["create"] is not None:
        create_devices(options["keys"], options["registry"], options["create"])
    devices = options["devices"] or tuple(sorted(path.stem for path in options["keys"].glob("*.key")))
    if not devices:
        raise InputError("there is no agent to be", expected=f"<device id>.key files in {options['keys']}", hint="make some with --create")
    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stops.append(got))
    until = None if options["seconds"] is None else time.monotonic() + options["seconds"]

    def stopped() -> bool:
        return bool(stops) or (until is not None and time.monotonic() >= until)

    content = _one_process(options, devices, stopped) if options["processes"] == 1 else _many_processes(options, devices, stopped)
    if options["as_json"]:
        click.echo(json.dumps(content))
        return
    click.echo(f"{content['devices']} devices, {content['updates']} updates, {content['accepted']} messages accepted")
    for sentence in content["failures"]:
        click.echo(sentence)


def create_devices(keys: Path, registry: Path | None, count: int) -> None:
    """Make keys of devices that have none."""
    for number in range(count):
        name = f"sim-{number:04d}"
        if (keys / f"{name}.key").exists():
            continue
        key = PrivateKey.generate()
        key.save(keys / f"{name}.key")
        if registry is not None:
            key.public.save(registry / f"{name}.pub")


def _one_process(options: dict[str, Any], devices: Sequence[str], stopped: Callable[[], bool]) -> dict[str, Any]:
    """Be all agents here."""
    from edge_runtime.fleet import FleetRequest, run_fleet

    names = ("bundle", "trusted", "broker", "federation", "keys", "data", "state")
    request = FleetRequest(devices=tuple(devices), **{name: options[name] for name in names})
    return run_fleet(request, stopped)


def _many_processes(options: dict[str, Any], devices: Sequence[str], stopped: Callable[[], bool]) -> dict[str, Any]:
    """Spread the agents over processes, and add up what these say."""
    words = [*broker_words(options["broker"]), "--federation", options["federation"], "--json"]
    for name in ("bundle", "trusted", "keys", "data", "state"):
        words += [] if options[name] is None else [f"--{name}", str(options[name])]
    shares = [devices[place :: options["processes"]] for place in range(options["processes"])]
    commands = [
        [sys.executable, "-m", "fedtailor", "edge", "simulate-fleet", *words, *(word for name in share for word in ("--device", name))]
        for share in shares
        if share
    ]
    workers = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) for command in commands]
    while not stopped() and all(worker.poll() is None for worker in workers):
        time.sleep(POLL_SECONDS)
    for worker in workers:
        worker.terminate()
    contents = [_result(worker) for worker in workers]
    totals = {name: sum(content[name] for content in contents) for name in ("devices", "taken", "declined", "updates", "accepted")}
    codes = {code for content in contents for code in content["refused"]}
    refused = {code: sum(content["refused"].get(code, 0) for content in contents) for code in sorted(codes)}
    return {**totals, "refused": refused, "failures": [sentence for content in contents for sentence in content["failures"]]}


def _result(worker: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what a process of the fleet says at its end."""
    try:
        output, _ = worker.communicate(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        worker.kill()
        output, _ = worker.communicate()
    try:
        content: dict[str, Any] = json.loads(output)
        assert "devices" in content  # noqa: S101  # an error is an object too
    except (ValueError, AssertionError) as error:
        raise TransportError("a process of the fleet ended badly", got=f"exit code {worker.returncode}: {output[:200]}") from error
    return content
