"""``fedtailor coordinator``: the operator's side of an exchange."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from protocol.broker_address import BrokerAddress
from protocol.broker_options import broker_options
from protocol.bundle import open_bundle
from protocol.errors import NotAllowedError
from protocol.freshness import next_boot
from protocol.keys import PrivateKey
from protocol.topics import COORDINATOR, Topics
from protocol.trust import open_trusted
from trainer.coordinator.prototype_round import PrototypeRound
from trainer.coordinator.registry import open_registry
from trainer.coordinator.rounds_cli import pause, resume, run, status


@click.group()
def coordinator() -> None:
    """Hold rounds with devices over a broker."""


for command in (run, status, pause, resume):
    coordinator.add_command(command)


@dataclass(frozen=True)
class PrototypesRequest:
    """What ``coordinator prototypes`` is asked to do; each field is the option of the same name."""

    bundle: Path
    trusted: Path
    broker: BrokerAddress
    federation: str
    key: Path
    registry: Path
    state: Path
    participants: tuple[str, ...]
    round_number: int
    reports: int | None
    deadline: float
    as_json: bool


@coordinator.command(epilog="Example: fedtailor coordinator prototypes --bundle bundle/ --broker mqtt://hub:1883 --participant pi-1 ...")
@click.option("--bundle", type=click.Path(path_type=Path), required=True, help="The bundle that the devices use.")
@click.option(
    "--trusted", type=click.Path(path_type=Path), required=True, envvar="FEDTAILOR_TRUSTED_KEY", help="Public key file of its signer."
)
@broker_options()
@click.option("--federation", default="default", show_default=True, help="Name of the federation.")
@click.option("--key", type=click.Path(path_type=Path), required=True, help="The coordinator's private key file.")
@click.option(
    "--registry", type=click.Path(path_type=Path), required=True, help="File of fedtailor keys enroll, or a folder of <device id>.pub."
)
@click.option("--state", type=click.Path(path_type=Path), required=True, help="Folder for what must outlive a restart.")
@click.option("--participant", "participants", multiple=True, required=True, help="Id of a device whose prototypes count; repeatable.")
@click.option("--round", "round_number", type=click.IntRange(min=0), default=0, show_default=True, help="Round of the exchange.")
@click.option("--reports", type=click.IntRange(min=0), help="Reports to wait for at the end; one a participant when left out.")
@click.option(
    "--deadline", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds for the updates, and again for reports."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def prototypes(**options: Any) -> None:
    """Collect class prototypes, publish their mean weighted by sample counts, and gather the devices' reports."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    request = PrototypesRequest(**options)
    content = _exchange(request)
    if request.as_json:
        click.echo(json.dumps(content))
        return
    click.echo(f"global prototypes of {content['classes']} classes from {', '.join(content['devices'])}")
    if content["missing"]:
        click.echo(f"missing: {', '.join(content['missing'])}")
    click.echo(f"{content['reports']} reports, {content['refused_count']} messages refused")


def _exchange(request: PrototypesRequest) -> dict[str, Any]:
    """Run one exchange and return what happened."""
    from protocol.mqtt import Connection
    from trainer.coordinator.service import Coordinator

    topics = Topics(request.federation)
    bundle = open_bundle(request.bundle, open_trusted(request.trusted))
    key, registry = PrivateKey.open(request.key), open_registry(request.registry)
    if bundle.manifest.coordinator_key != key.public.hex:
        hint = "export the bundle with this coordinator's --coordinator-key"
        raise NotAllowedError("devices with this bundle will not believe this coordinator", got=key.public.fingerprint, hint=hint)
    for device in request.participants:
        registry.key(device)  # a forgotten key is found now and not in the middle of the round
    awaited = len(request.participants) if request.reports is None else request.reports
    exchange = PrototypeRound(request.round_number, request.participants, len(bundle.manifest.classes), bundle.manifest.feature_dimension())
    with Connection(request.broker, f"{request.federation}.{COORDINATOR}", (topics.any_up,), request.deadline) as connection:
        service = Coordinator(connection, topics, exchange, registry, key, next_boot(request.state / "boot"), bundle.digest)
        service.collect(lambda: not exchange.missing, time.monotonic() + request.deadline)
        published = service.publish_prototypes()
        service.collect(lambda: len(service.reports) >= awaited, time.monotonic() + request.deadline)
    return {
        "devices": exchange.accepted,
        "missing": exchange.missing,
        "classes": len(published.classes),
        "counts": {bundle.manifest.classes[place]: int(count) for place, count in zip(published.classes, published.counts, strict=True)},
        "reports": len(service.reports),
        "refused": list(service.refused),
        "refused_count": service.refused_count,
        "bytes_up": connection.bytes_up,
        "bytes_down": connection.bytes_down,
    }
