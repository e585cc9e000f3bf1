"""An agent from its command line to its farewell: store, data, keys, connection; whatever fails outside, it begins again."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_runtime.agent_bundles import Bundles, StoredBundles
from edge_runtime.agent_memory import AgentMemory
from edge_runtime.agent_service import AgentCounts, AgentIdentity, FederationAgent
from edge_runtime.agent_will import will_of
from edge_runtime.agent_work import DeviceWork
from edge_runtime.bundle import Bundle
from edge_runtime.device_data import DeviceData
from edge_runtime.predictions import Predictions
from edge_runtime.store import BundleStore, StoreSettings
from protocol.broker_address import BrokerAddress
from protocol.errors import BrokerUnreachableError, InputError
from protocol.freshness import next_boot
from protocol.keys import PrivateKey, PublicKey
from protocol.mqtt import Connection
from protocol.outbox import Outbox
from protocol.topics import DeviceRoutes, Topics, check_name

STEP_SECONDS = 0.5
CONNECT_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 30.0
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentRequest:
    """What ``edge run --bundle-store`` is asked to do; each field is the option of the same name."""

    store: Path
    trusted: Path
    broker: BrokerAddress
    federation: str
    device: str
    key: Path
    state: Path
    data: Path
    coordinator: Path | None
    targets: tuple[str, ...] = ()


def run_agent(request: AgentRequest, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Be a device's agent until somebody stops it, and return what happened.

    Args:
        request: What to do.
        stopped: Whether to end now, in order.

    Raises:
        FedtailorError: The device's own files cannot be used; nothing that comes over the network ends an agent.
    """
    check_name("device id", request.device)
    if not request.data.is_dir():
        raise InputError("there is no folder of data", expected="a folder with support.npy", got=str(request.data))
    request.state.mkdir(parents=True, exist_ok=True)
    store = BundleStore(request.store, request.trusted, StoreSettings(targets=request.targets))
    bundles = StoredBundles(store, request.state)
    predictions = Predictions(request.data)
    predictions.start()
    try:
        return _run(request, bundles, predictions, stopped)
    finally:
        predictions.close()
        bundles.close()


def _run(request: AgentRequest, bundles: Bundles, predictions: Predictions, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Be an agent with bundles and predictions at work."""
    coordinator = None if request.coordinator is None else PublicKey.open(request.coordinator)
    current = bundles.current()
    if coordinator is None and current is None:
        hint = "pass the coordinator's public key with --coordinator, or install a bundle first"
        raise InputError("this device knows no coordinator", expected="a bundle in the store, or --coordinator", hint=hint)
    boot = next_boot(request.state / "boot")
    identity = AgentIdentity(request.federation, request.device, PrivateKey.open(request.key), boot, coordinator)
    memory, outbox = AgentMemory(request.state / "agent.db"), Outbox(request.state / "outbox.db", boot)
    subscriptions = DeviceRoutes(Topics(request.federation), request.device).subscriptions
    counts = AgentCounts()
    started = time.monotonic()

    def work_of(bundle: Bundle) -> DeviceWork:
        return DeviceWork(bundle, DeviceData(request.data, bundle.manifest), request.device, request.state)

    once = OpenOnce(bundles, current)
    with ThreadPoolExecutor(1, thread_name_prefix="work") as executor:
        try:
            name, will = f"{request.federation}.{request.device}", will_of(identity, once.current)
            for connection in connections(lambda: Connection(request.broker, name, subscriptions, will=will), stopped):
                agent = FederationAgent(
                    identity, connection, once, memory, outbox, request.state / "incoming", work_of, executor, predictions.use
                )
                agent.counts = counts
                while not stopped():
                    agent.step(STEP_SECONDS)
                agent.close()
        finally:
            outbox.close()
            memory.close()
    return {
        "device": request.device,
        "boot": boot,
        "bundle": None if once.latest is None else once.latest.digest,
        "tasks": counts.taken,
        "declined": counts.declined,
        "updates": counts.updates,
        "accepted": counts.accepted,
        "refused": counts.refused,
        "installed": counts.installed,
        "latest_round": counts.latest_round,
        "predicted_files": predictions.files,
        "predicted_samples": predictions.samples,
        "seconds": time.monotonic() - started,
    }


class OpenOnce:
    """Bundles whose current one was opened already: opening one on trial counts as a start."""

    def __init__(self, bundles: Bundles, current: Bundle | None) -> None:
        self._bundles = bundles
        self.latest = current

    def current(self) -> Bundle | None:
        """Return the bundle in use."""
        return self.latest

    def install(self, archive: Path, digest: str) -> Bundle:
        """Take a packed bundle into use."""
        self.latest = self._bundles.install(archive, digest)
        return self.latest

    def used(self) -> None:
        """Note a successful use."""
        self._bundles.used()

    def close(self) -> None:
        """End the use in order."""
        self._bundles.close()


def connections(make: Callable[[], Connection], stopped: Callable[[], bool]) -> Iterator[Connection]:
    """Yield an open connection as soon as there is one; a broker that is away is tried again and again, with jitter."""
    wait = 1.0
    while not stopped():
        connection = make()
        try:
            with connection:
                yield connection
                return
        except BrokerUnreachableError as error:
            LOGGER.warning("%s", error.sentence())
        until = time.monotonic() + random.uniform(0, wait)  # noqa: S311  # it spreads a fleet; it is no secret
        while time.monotonic() < until and not stopped():
            time.sleep(0.1)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)
