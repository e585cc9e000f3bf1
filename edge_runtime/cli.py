"""``fedtailor edge``: what a device engineer types on the device."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edge_runtime.bench.cli import bench
from edge_runtime.classify_cli import personalize, predict
from edge_runtime.doctor.cli import doctor
from edge_runtime.options import TRUSTED
from edge_runtime.store_cli import install, store
from protocol.broker_address import parse_broker
from protocol.freshness import next_boot
from protocol.keys import PrivateKey
from protocol.topics import check_name


@click.group()
def edge() -> None:
    """Personalise, predict and take part, on the device; no torch needed."""


for command in (bench, doctor, install, personalize, predict, store):
    edge.add_command(command)


@dataclass(frozen=True)
class RunRequest:
    """What ``edge run`` is asked to do; each field is the option of the same name."""

    bundle: Path
    trusted: Path
    broker: str
    federation: str
    device: str
    key: Path
    state: Path
    data: Path
    round_number: int
    deadline: float
    as_json: bool


@edge.command(epilog="Example: fedtailor edge run --bundle bundle/ --trusted release.pub --broker mqtt://hub:1883 --device pi-17 ...")
@click.option("--bundle", type=click.Path(path_type=Path), required=True, help="The bundle.")
@TRUSTED
@click.option("--broker", required=True, metavar="URL", help="mqtt://host:port or mqtts://host:port.")
@click.option("--federation", default="default", show_default=True, help="Name of the federation.")
@click.option("--device", required=True, help="Id of this device: a-z, 0-9 and -.")
@click.option("--key", type=click.Path(path_type=Path), required=True, help="This device's private key file.")
@click.option("--state", type=click.Path(path_type=Path), required=True, help="Folder for what must outlive a restart.")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Folder with support.npy, query.npy; labels.npy to take part.")
@click.option("--round", "round_number", type=click.IntRange(min=0), default=0, show_default=True, help="Round of the exchange.")
@click.option("--deadline", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds until giving up.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run(**options: Any) -> None:
    """Exchange prototypes with a coordinator: send ours if there are labels, receive the global ones, report."""
    request = RunRequest(**options)
    content = _run(request)
    if request.as_json:
        click.echo(json.dumps(content))
        return
    for name in ("tailored_accuracy", "nearest_prototype_accuracy"):
        share = content[name]
        click.echo(f"{name.replace('_', ' ')}: " + ("unknown, no labels" if share is None else f"{share:.1%}"))
    click.echo(f"{content['classes_sent']} prototypes sent, {content['bytes_up']:,} bytes up, {content['bytes_down']:,} bytes down")


def _run(request: RunRequest) -> dict[str, Any]:
    """Take part in one exchange and return what happened."""
    import numpy as np

    from edge_runtime.agent import Agent, DeviceIdentity, require_exchange, subscriptions
    from edge_runtime.bundle import Bundle
    from edge_runtime.device_data import DeviceData
    from edge_runtime.prototypes import nearest_prototype
    from protocol.messages import EvaluationReport
    from protocol.mqtt import Connection

    address = parse_broker(request.broker)
    check_name("device id", request.device)
    deadline = time.monotonic() + request.deadline
    bundle = Bundle.open(request.bundle, request.trusted)
    require_exchange(bundle)
    data = DeviceData(request.data, bundle.manifest)
    support, query, labels = data.support(), data.query(), data.labels()
    tailored = bundle.personalize(support).logits(query).argmax(axis=1)  # (Q,)
    identity = DeviceIdentity(request.federation, request.device, PrivateKey.open(request.key), next_boot(request.state / "boot"))
    connection = Connection(
        address, f"{request.federation}.{request.device}", subscriptions(request.federation, request.device), request.deadline
    )
    with connection:
        agent = Agent(bundle, identity, connection, deadline, request.round_number)
        sent = 0
        if labels is not None:
            sent = len(agent.send_prototypes(bundle.features(support), labels).classes)
        nearest = nearest_prototype(bundle.features(query), agent.receive_prototypes())  # (Q,)
        truth = data.query_labels()  # read only now: nothing above may depend on it
        shares = [None if truth is None or len(truth) == 0 else float(np.mean(guess == truth)) for guess in (tailored, nearest)]
        reported = agent.try_to_report(EvaluationReport(request.round_number, len(query), *shares))
    return {
        "device": request.device,
        "samples": len(support),
        "classes_sent": sent,
        "tailored_accuracy": shares[0],
        "nearest_prototype_accuracy": shares[1],
        "bytes_up": connection.bytes_up,
        "bytes_down": connection.bytes_down,
        "reported": reported,
        "refused": list(agent.refused),
    }
