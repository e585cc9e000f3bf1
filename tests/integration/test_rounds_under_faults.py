"""Rounds over a network that loses, repeats, reorders and resets, and a broker that dies: nothing is lost, nothing counts twice.

Coordinator and devices are processes of their own. What a device was told lies in its outbox, what counted in the journal.
Each run prints its seed and its counts.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from edge_runtime.fleet import Rehearsal
from edge_runtime.fleet_cli import create_devices
from export.bundling import Extras, export_run
from export.bundling import Release as BundleRelease
from protocol.keys import PrivateKey
from protocol.messages import ParameterUpdate
from protocol.round_messages import RoundTask
from tests.brokers import Broker, running
from tests.faults.faults import Faults
from tests.faults.proxy import FaultProxy
from tests.integration.fork_host import ForkHost
from trainer.coordinator.journal import Journal
from trainer.coordinator.parameter_exchange import decode_state, encode_state
from trainer.experiments import Experiment
from trainer.methods.base import Updates
from trainer.methods.registry import method_settings
from trainer.runs import Run
from trainer.training import Training

pytestmark = [pytest.mark.broker, pytest.mark.slow]
DEVICES = 5
ROUNDS = 2
NAMES = tuple(f"sim-{number:04d}" for number in range(DEVICES))
PLANS: dict[str, Faults] = {
    "resets": Faults(reset_every=(0.3, 1.2)),
    "swallowed": Faults(swallow=0.2),
    "twice and out of order": Faults(duplicate=0.3, delay=0.3),
    "broker dies": Faults(),
    "all": Faults(reset_every=(0.6, 2.4), swallow=0.1, duplicate=0.1, delay=0.1),
}
SEEDS = range(4)
SECONDS = 200.0
AT_ONCE = 10
MESSAGES = 150  # that the devices of two rounds send and receive
BOUNDED_SECONDS = 60.0


@dataclass(frozen=True)
class Ready:
    """A release whose devices rehearse, and the states that rounds without faults come to."""

    root: Path
    states: tuple[str, ...]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Ready:
    root = tmp_path_factory.mktemp("faults")
    release, coordinator = PrivateKey.generate(), PrivateKey.generate()
    release.public.save(root / "release.pub")
    coordinator.save(root / "coordinator.key")
    (root / "registry").mkdir()
    create_devices(root / "keys", root / "registry", DEVICES)
    experiment = Experiment(data="digits", rounds=1, engine="loop", methods={"fedavg": {"model": "mlp-150"}})
    training = Training.start(experiment, "fedavg", 0, root / "run")
    training.finish()
    offered = BundleRelease("digits", coordinator_key=coordinator.public.hex)
    export_run(training.run, root / "bundle", offered, release, extras=Extras((), 1.0, training=False))
    return Ready(root, undisturbed(training.run))


def undisturbed(run: Run) -> tuple[str, ...]:
    """Return the digests of the states, from the method and the devices' own work alone."""
    method = method_settings("fedavg", run.config.settings).bind(run.config.task)
    server, digests = run.final_state(), []
    for number in range(1, 1 + ROUNDS):
        base = encode_state(server)
        task = RoundTask(number, 0, 2e9, hashlib.sha256(base).hexdigest(), len(base), run.config.seed, "parameters", {}, "float32")
        updates = [Rehearsal(name).do(task, base) for name in NAMES]
        assert all(isinstance(update, ParameterUpdate) for update in updates)
        trees = [{name: torch.from_numpy(tensor) for name, tensor in update.values().items()} for update in updates]  # type: ignore[union-attr]
        stacked = {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}
        server = method.aggregate(decode_state(base), Updates(NAMES, (stacked,), torch.ones(DEVICES, dtype=torch.int64)))
        digests.append(hashlib.sha256(encode_state(server)).hexdigest())
    return tuple(digests)


@pytest.fixture(scope="module")
def host() -> Iterator[ForkHost]:
    with ForkHost() as running_host:
        yield running_host


@dataclass
class Campaign:
    """One federation over a proxy."""

    ready: Ready
    folder: Path
    host: ForkHost
    device_url: str
    coordinator_url: str

    def __post_init__(self) -> None:
        shutil.copytree(self.ready.root / "run", self.folder / "run")

    def shared(self, url: str) -> tuple[object, ...]:
        return ("--bundle", self.ready.root / "bundle", "--trusted", self.ready.root / "release.pub", "--broker", url, "--json")

    def fleet(self) -> int:
        words = ("--keys", self.ready.root / "keys", "--state", self.folder / "devices")
        return self.host.start(self.folder / "fleet.json", "edge", "simulate-fleet", *self.shared(self.device_url), *words)

    def coordinator(self) -> int:
        own = ("--run", self.folder / "run", "--key", self.ready.root / "coordinator.key", "--registry", self.ready.root / "registry")
        plan = ("--method", "fedavg", "--rounds", ROUNDS, "--min-devices", DEVICES, "--deadline", 120, "--linger", 60)
        return self.host.start(self.folder / "coordinator.json", "coordinator", "run", *self.shared(self.coordinator_url), *own, *plan)

    def journal(self) -> list[dict[str, Any]]:
        folder = self.folder / "run" / "coordinator"
        if not (folder / "journal.db").exists():
            return []
        journal = Journal(folder)
        try:
            return journal.history()
        finally:
            journal.close()

    def counted(self) -> int:
        return sum(row["counted"] for row in self.journal())

    def finished(self) -> bool:
        return sum(row["phase"] == "published" for row in self.journal()) == ROUNDS

    def check(self, fleet: int, coordinator: int, *, restarted: bool = False) -> dict[str, Any]:
        """End both and compare what devices were told with what counted."""
        self.host.kill(fleet, signal.SIGTERM)
        assert self.host.wait(fleet, 60) == 0, (self.folder / "fleet.json").read_text()
        self.host.kill(coordinator, signal.SIGTERM)
        assert self.host.wait(coordinator, 60) == 0, (self.folder / "coordinator.json").read_text()
        told = json.loads((self.folder / "fleet.json").read_text().splitlines()[-1])
        rows = self.journal()
        assert [row["counted"] for row in rows] == [DEVICES] * ROUNDS
        assert tuple(row["result"] for row in rows) == self.ready.states  # bit for bit
        assert told["failures"] == []
        assert told["accepted"] <= DEVICES * ROUNDS
        if not restarted:
            assert told["updates"] == DEVICES * ROUNDS
            assert sum(told["refused"].values()) == 0, told
        return told


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the rounds did not end in time"
        time.sleep(0.1)


def hold(ready: Ready, host: ForkHost, folder: Path, seed: int, plan: str) -> str:
    """Hold rounds under one schedule of faults; return what is to be printed."""
    draws, began = random.Random(seed), time.monotonic()
    with running(Broker("mosquitto", folder)) as broker, FaultProxy(broker.port, PLANS[plan], seed) as proxy:
        campaign = Campaign(ready, folder, host, proxy.url, proxy.url if PLANS[plan].reset_every else broker.url)
        fleet, coordinator = campaign.fleet(), campaign.coordinator()
        if plan in {"broker dies", "all"}:
            goal = draws.randrange(1, DEVICES * ROUNDS)
            wait_until(lambda: campaign.counted() >= goal or campaign.finished(), SECONDS)
            broker.stop()
            time.sleep(draws.uniform(0, 0.5))
            broker.start()
        wait_until(campaign.finished, SECONDS)
        told = campaign.check(fleet, coordinator)
        counts = {name: count for name, count in proxy.counts().items() if count}
    facts = {"seed": seed, "plan": plan, "counted": DEVICES * ROUNDS, "lost": 0, "told": told["accepted"]}
    return json.dumps({**facts, "seconds": round(time.monotonic() - began, 1), **counts})


def test_a_faulty_network_loses_nothing(ready: Ready, host: ForkHost, tmp_path: Path) -> None:
    """Schedules run beside each other: most of their time they wait."""
    schedules = [(seed, plan) for seed in SEEDS for plan in PLANS]
    folders = [tmp_path / str(number) for number in range(len(schedules))]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        held = pool.map(lambda folder, schedule: hold(ready, host, folder, *schedule), folders, schedules)
        sys.stderr.write("\n".join([*held, ""]))


@pytest.mark.parametrize("stride", [15, pytest.param(1, marks=pytest.mark.thorough)])
def test_any_one_message_may_be_lost(ready: Ready, host: ForkHost, tmp_path: Path, stride: int) -> None:
    """The k-th message of the devices' connections is acknowledged and lost, for every k that matters; the end comes in bounded time."""
    lost = range(1, MESSAGES + 1, stride)
    folders = [tmp_path / str(number) for number in lost]
    for folder in folders:
        folder.mkdir()

    def one(folder: Path, number: int) -> float:
        began = time.monotonic()
        with running(Broker("mosquitto", folder)) as broker, FaultProxy(broker.port, Faults(drop=(number,)), number) as proxy:
            campaign = Campaign(ready, folder, host, proxy.url, broker.url)
            fleet, coordinator = campaign.fleet(), campaign.coordinator()
            wait_until(campaign.finished, SECONDS)
            campaign.check(fleet, coordinator)
        return time.monotonic() - began

    with ThreadPoolExecutor(AT_ONCE) as pool:
        seconds = list(pool.map(one, folders, lost))
    sys.stderr.write(f"one message of {MESSAGES} lost in {len(seconds)} runs, slowest {max(seconds):.1f} s\n")
    assert max(seconds) < BOUNDED_SECONDS
