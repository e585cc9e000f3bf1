"""The broker's half of the demo: three participants send prototypes, every device receives the global ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from export.demo.commands import Commands, last_json
from export.demo.plan import EXCHANGING_PARTICIPANTS, FEDERATION, DemoPlan
from protocol.broker import EmbeddedBroker
from trainer.data.federation import FederatedData

AT_ONCE = 3
DEADLINE_SECONDS = 60


def exchanging(data: FederatedData) -> list[str]:
    """Return the ids of the participants that send prototypes."""
    return [client.device for client in data.participants[:EXCHANGING_PARTICIPANTS]]


def exchange_prototypes(plan: DemoPlan, commands: Commands, data: FederatedData, done: Callable[[], None]) -> dict[str, dict[str, Any]]:
    """Run the exchange over the plan's broker, or the embedded one, and return each device's report by id."""
    participants, new_devices = exchanging(data), [device.device for device in data.new_devices]
    with _broker_url(plan) as url:
        coordinator = commands.start(*_coordinator_words(plan, url, participants, len(participants) + len(new_devices)))
        reports: dict[str, dict[str, Any]] = {}
        groups = [participants, *(new_devices[at : at + AT_ONCE] for at in range(0, len(new_devices), AT_ONCE))]
        for group in groups:  # participants are all needed at once; new devices may come when they like
            processes = {name: commands.start(*_device_words(plan, url, name)) for name in group}
            for name, process in processes.items():
                reports[name] = last_json(commands.finish(process))
                done()
        commands.finish(coordinator)
    return reports


def _coordinator_words(plan: DemoPlan, url: str, participants: list[str], reports: int) -> list[object]:
    """Return the coordinator's command."""
    chosen = [word for name in participants for word in ("--participant", name)]
    keys = [
        "--key",
        plan.private_key("coordinator"),
        "--trusted",
        plan.public_key("release"),
        "--registry",
        plan.registry,
        "--state",
        plan.root / "coordinator",
    ]
    limits = ["--deadline", DEADLINE_SECONDS, "--reports", reports, "--json"]
    return ["coordinator", "prototypes", "--bundle", plan.bundle, "--broker", url, "--federation", FEDERATION, *keys, *chosen, *limits]


def _device_words(plan: DemoPlan, url: str, name: str) -> list[object]:
    """Return a device's command."""
    folder = plan.device(name)
    identity = ["--federation", FEDERATION, "--device", name, "--key", plan.private_key(name), "--state", folder / "state"]
    bundle = ["--bundle", plan.bundle, "--trusted", plan.public_key("release")]
    return ["edge", "run", *bundle, "--broker", url, *identity, "--data", folder, "--deadline", DEADLINE_SECONDS, "--json"]


@contextmanager
def _broker_url(plan: DemoPlan) -> Iterator[str]:
    """Give the URL of the plan's broker, or of an embedded one that ends with the block."""
    if plan.broker is not None:
        yield plan.broker
        return
    with EmbeddedBroker() as broker:
        yield broker.url
