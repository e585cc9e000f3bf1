"""``fedtailor edge run``: take part in a federation, for good with a bundle store, or in one exchange of prototypes."""

from __future__ import annotations

import json
import logging
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from edge_runtime.options import TRUSTED
from protocol.broker_address import BrokerAddress
from protocol.broker_options import broker_options
from protocol.console import AS_JSON
from protocol.errors import InputError
from protocol.freshness import next_boot
from protocol.keys import PrivateKey
from protocol.topics import check_name


@dataclass(frozen=True)
class RunRequest:
    """What ``edge run`` is asked to do; each field is the option of the same name."""

    bundle: Path | None
    bundle_store: Path | None
    trusted: Path
    broker: BrokerAddress
    federation: str
    device: str
    key: Path
    state: Path
    data: Path
    coordinator: Path | None
    targets: tuple[str, ...]
    round_number: int
    deadline: float
    as_json: bool


@click.command(
    epilog="Example: fedtailor edge run --bundle-store /var/lib/fedtailor --trusted release.pub --broker mqtt://hub:1883 "
    "--device pi-17 --key pi-17.key --state /var/lib/fedtailor-state --data /var/lib/camera"
)
@click.option(
    "--bundle-store", type=click.Path(path_type=Path), envvar="FEDTAILOR_STORE", help="Be an agent with this store, until stopped."
)
@click.option("--bundle", type=click.Path(path_type=Path), help="Exchange prototypes once with this bundle, instead.")
@TRUSTED
@broker_options()
@click.option("--federation", default="default", show_default=True, help="Name of the federation.")
@click.option("--device", required=True, help="Id of this device: a-z, 0-9 and -.")
@click.option("--key", type=click.Path(path_type=Path), required=True, help="This device's private key file.")
@click.option("--state", type=click.Path(path_type=Path), required=True, help="Folder for what must outlive a restart.")
@click.option("--data", type=click.Path(path_type=Path), required=True, help="Folder with support.npy; labels.npy to take part.")
@click.option("--coordinator", type=click.Path(path_type=Path), help="The coordinator's public key; needed before the first bundle.")
@click.option("--target", "targets", multiple=True, envvar="FEDTAILOR_TARGET", help="Hardware group of this device; repeatable.")
@click.option("--round", "round_number", type=click.IntRange(min=0), default=0, show_default=True, help="Round of the one exchange.")
@click.option("--deadline", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds for the one exchange.")
@AS_JSON
def run(**options: Any) -> None:
    """Take part: install the channel's bundle, personalise, predict what appears in DATA/new, train when asked. SIGTERM ends it."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    request = RunRequest(**options)
    if (request.bundle is None) == (request.bundle_store is None):
        raise InputError("what to run is not clear", expected="--bundle-store for an agent, or --bundle for one exchange of prototypes")
    content = _serve(request, request.bundle_store) if request.bundle_store is not None else _exchange(request)
    if request.as_json:
        click.echo(json.dumps(content))
    elif request.bundle_store is not None:
        refused = sum(content["refused"].values())
        click.echo(f"{content['updates']} updates sent, {content['accepted']} accepted, {refused} refused; bundle {content['bundle']}")
    else:
        for name in ("tailored_accuracy", "nearest_prototype_accuracy"):
            share = content[name]
            click.echo(f"{name.replace('_', ' ')}: " + ("unknown, no labels" if share is None else f"{share:.1%}"))
        click.echo(f"{content['classes_sent']} prototypes sent, {content['bytes_up']:,} bytes up, {content['bytes_down']:,} bytes down")


def _serve(request: RunRequest, store: Path) -> dict[str, Any]:
    """Be an agent until a signal comes."""
    from edge_runtime.agent_runner import AgentRequest, run_agent

    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stops.append(got))
    names = ("trusted", "broker", "federation", "device", "key", "state", "data", "coordinator", "targets")
    return run_agent(AgentRequest(store=store, **{name: getattr(request, name) for name in names}), lambda: bool(stops))


def _exchange(request: RunRequest) -> dict[str, Any]:
    """Take part in one exchange of prototypes and return what happened."""
    import numpy as np

    from edge_runtime.agent import Agent, DeviceIdentity, require_exchange, subscriptions
    from edge_runtime.bundle import Bundle
    from edge_runtime.device_data import DeviceData
    from edge_runtime.prototypes import nearest_prototype
    from protocol.messages import EvaluationReport
    from protocol.mqtt import Connection

    assert request.bundle is not None  # noqa: S101  # `run` saw to it
    check_name("device id", request.device)
    deadline = time.monotonic() + request.deadline
    bundle = Bundle.open(request.bundle, request.trusted)
    require_exchange(bundle)
    data = DeviceData(request.data, bundle.manifest)
    support, query, labels = data.support(), data.query(), data.labels()
    tailored = bundle.personalize(support).logits(query).argmax(axis=1)  # (Q,)
    identity = DeviceIdentity(request.federation, request.device, PrivateKey.open(request.key), next_boot(request.state / "boot"))
    connection = Connection(
        request.broker, f"{request.federation}.{request.device}", subscriptions(request.federation, request.device), request.deadline
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
