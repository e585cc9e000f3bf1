"""The prototype exchange as it really runs: a coordinator, participants and new devices as processes, over real brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_runtime.bundle import Bundle
from edge_runtime.prototypes import DEFAULT_MINIMUM_COUNT
from protocol.keys import PrivateKey
from protocol.mqtt import Connection
from protocol.topics import Topics
from tests.brokers import Broker
from tests.releases import Release
from trainer.data.device_folders import write_device_folders

pytestmark = pytest.mark.broker
ROOT = Path(__file__).resolve().parents[2]
PARTICIPANTS = ["participant-00", "participant-01", "participant-02"]
NEW = ["new-00", "new-01"]


def fedtailor(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedtailor", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    result: dict[str, Any] = json.loads(output)
    return result


class Fleet:
    """Devices on disk, and the commands that start them."""

    def __init__(self, release: Release, root: Path, broker: Broker, federation: str) -> None:
        self.release, self.root, self.broker, self.federation = release, root, broker, federation
        self.data, self.answers = release.data()
        write_device_folders(root / "devices", self.data, self.answers)
        self.keys = {name: PrivateKey.generate() for name in [*PARTICIPANTS, *NEW]}
        for name, key in self.keys.items():
            key.save(root / "keys" / f"{name}.key")
            key.public.save(root / "keys" / f"{name}.pub")

    def common(self) -> list[object]:
        return ["--bundle", self.release.bundle, "--trusted", self.release.trusted, "--broker", self.broker.url, "--json"]

    def coordinator(self, *more: object, deadline: int = 60) -> subprocess.Popen[str]:
        chosen = [word for name in PARTICIPANTS for word in ("--participant", name)]
        keys = ["--key", self.release.root / "coordinator.key", "--registry", self.root / "keys", "--state", self.root / "coordinator"]
        words = [*self.common(), *keys, *chosen, "--federation", self.federation, "--deadline", deadline, *more]
        return fedtailor("coordinator", "prototypes", *words)

    def device(self, name: str, *, key: str | None = None, deadline: int = 60) -> subprocess.Popen[str]:
        folder = self.root / "devices" / name
        identity = ["--device", name, "--key", self.root / "keys" / f"{key or name}.key", "--state", folder / "state"]
        words = [*self.common(), *identity, "--data", folder, "--federation", self.federation, "--deadline", deadline]
        return fedtailor("edge", "run", *words)

    def expected(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return classes, means and counts computed from all released samples at once, without any of our statistics."""
        bundle = Bundle.open(self.release.bundle, self.release.trusted)
        chosen = [client for client in self.data.participants if client.device in PARTICIPANTS]
        kept_features, kept_labels = [], []
        for client in chosen:
            enough = np.isin(client.labels, [c for c in range(10) if (client.labels == c).sum() >= DEFAULT_MINIMUM_COUNT])
            kept_features.append(bundle.features(client.samples)[enough])
            kept_labels.append(client.labels[enough])
        features, labels = np.concatenate(kept_features).astype(np.float64), np.concatenate(kept_labels)
        classes = np.unique(labels)
        return classes, np.stack([features[labels == c].mean(axis=0) for c in classes]), np.array([(labels == c).sum() for c in classes])


@pytest.fixture
def fleet(release: Release, tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Fleet:
    name = f"{request.node.name}".lower().translate(str.maketrans("_[]", "---"))[:60]
    return Fleet(release, tmp_path, broker, name)


def test_prototypes_travel_and_every_device_gets_the_weighted_mean(fleet: Fleet) -> None:
    coordinator = fleet.coordinator("--reports", len(PARTICIPANTS) + len(NEW))
    devices = {name: fleet.device(name) for name in [*NEW, *PARTICIPANTS]}
    reports = {name: result_of(process) for name, process in devices.items()}
    summary = result_of(coordinator)
    classes, means, counts = fleet.expected()
    assert summary["devices"] == PARTICIPANTS
    assert summary["counts"] == {str(c): int(count) for c, count in zip(classes, counts, strict=True)}
    assert summary["refused"] == []
    bundle = Bundle.open(fleet.release.bundle, fleet.release.trusted)
    for device in fleet.data.new_devices[: len(NEW)]:
        features = bundle.features(device.query).astype(np.float64)
        distances = ((features[:, None] - means[None]) ** 2).sum(axis=2)
        nearest = classes[distances.argmin(axis=1)]
        truth = fleet.answers.query_labels[device.device]
        report = reports[device.device]
        assert report["nearest_prototype_accuracy"] == pytest.approx(float(np.mean(nearest == truth)), abs=0.03)
        assert report["classes_sent"] == 0
        assert report["bytes_up"] > 0
        assert report["bytes_down"] > 0
    assert all(reports[name]["classes_sent"] > 0 for name in PARTICIPANTS)


def test_a_round_closes_without_a_device_that_never_comes(fleet: Fleet) -> None:
    coordinator = fleet.coordinator("--reports", 2, deadline=8)
    devices = [fleet.device(name) for name in PARTICIPANTS[:2]]
    for process in devices:
        result_of(process)
    summary = result_of(coordinator)
    assert summary["devices"] == PARTICIPANTS[:2]
    assert summary["missing"] == PARTICIPANTS[2:]


def test_hostile_messages_are_refused_and_change_nothing(fleet: Fleet) -> None:
    topics = Topics(fleet.federation)
    coordinator = fleet.coordinator("--reports", 3)
    with Connection(fleet.broker.address, "hostile") as hostile:
        for payload in (b"", b"nonsense", b"FTM1" + b"\xff" * 200, b"\x80\x04\x95pickle", b"x" * 30_000):
            for name in (*PARTICIPANTS, "unknown-device"):
                hostile.publish(topics.up(name), payload)
                hostile.publish(topics.down(name), payload)
            hostile.publish(topics.prototypes, payload, retain=True)
        impostor = fleet.device("participant-01", key="new-00", deadline=8)  # signs with a key that is not its own
        _, errors = impostor.communicate(timeout=60)
        assert impostor.returncode == 52, errors  # nobody answers it
        honest = [fleet.device(name) for name in PARTICIPANTS]
        reports = [result_of(process) for process in honest]
        hostile.publish(topics.prototypes, b"", retain=True)
    summary = result_of(coordinator)
    classes, _, counts = fleet.expected()
    assert summary["counts"] == {str(c): int(count) for c, count in zip(classes, counts, strict=True)}
    assert any("signature" in sentence for sentence in summary["refused"])
    assert all(report["nearest_prototype_accuracy"] is not None for report in reports)
