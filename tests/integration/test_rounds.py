"""Rounds as they really run: a coordinator and devices as processes over mosquitto; real training graphs, real data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.tensors import decode_tensors
from tests.brokers import Broker, running
from tests.integration.federation import FederationOf, farewell, make_release, result_of, wait_for
from trainer.coordinator.journal import Journal
from trainer.coordinator.parameter_exchange import encode_state
from trainer.data.datasets import load_dataset
from trainer.data.federation import split_dataset
from trainer.methods.base import DeviceView, State, Updates
from trainer.methods.registry import method_settings

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PARTICIPANTS = [f"participant-0{number}" for number in range(4)]
Make = Callable[[str], FederationOf]


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def release(method: str) -> Path:
        if method not in made:
            made[method] = make_release(tmp_path_factory.mktemp(method), method)
        return made[method]

    return release


@pytest.fixture
def federation(releases: Callable[[str], Path], tmp_path: Path) -> Iterator[Make]:
    made: list[FederationOf] = []
    with running(Broker("mosquitto", tmp_path)) as broker:

        def make(method: str) -> FederationOf:
            made.append(FederationOf(releases(method), tmp_path, broker.url, "test"))
            return made[0]

        yield make
        for each in made:
            each.stop()


def tensors(path: Path) -> State:
    return {name: torch.from_numpy(array) for name, array in decode_tensors(path.read_bytes()).items()}


def accuracy(federation: FederationOf, server: State) -> float:
    """Return the mean accuracy of the participants on their own test data."""
    config = federation.run.config
    method = method_settings(config.method, config.settings).bind(config.task)
    data, _ = split_dataset(load_dataset("digits"), config.split)
    shares = []
    for client in data.participants:
        samples, labels = torch.from_numpy(client.samples), torch.from_numpy(client.labels)
        predict = method.predictor(server, DeviceView(client.device, samples, labels, {}, config.seed))
        with torch.no_grad():
            shares.append(float((predict(torch.from_numpy(client.test_samples)).argmax(1).numpy() == client.test_labels).mean()))
    return float(np.mean(shares))


def check_last_round(federation: FederationOf, number: int, devices: list[str]) -> None:
    """The state is what the method's own ``aggregate`` makes of the updates in the journal, as in the simulator: stacked, one call."""
    config = federation.run.config
    method = method_settings(config.method, config.settings).bind(config.task)
    journal = Journal(federation.root / "run" / "coordinator")
    updates = list(journal.updates(number))
    journal.close()
    assert [update.device for update in updates] == devices
    trees = [decode_tensors(update.content) for update in updates]
    stacked = {name: torch.from_numpy(np.stack([tree[name] for tree in trees])) for name in trees[0]}
    counts = torch.tensor([update.sample_count for update in updates])
    states = federation.root / "run" / "coordinator" / "states"
    before = tensors(states / f"round-{number:05d}.safetensors")
    after = method.aggregate(before, Updates(tuple(devices), (stacked,), counts))
    assert encode_state(after) == (states / f"round-{number + 1:05d}.safetensors").read_bytes()


@pytest.mark.parametrize("method", [pytest.param("fedavg", marks=pytest.mark.thorough), "hyperfedzero"])  # docs/rounds.md trains fedavg
def test_devices_train_and_the_global_model_gets_better(federation: Make, method: str) -> None:
    """Bundles come over MQTT, devices train, predict meanwhile, and say goodbye; the state is the simulator's of the same updates."""
    found = federation(method)
    devices = {name: found.device(name) for name in PARTICIPANTS}
    for name in PARTICIPANTS:
        samples = np.load(found.root / name / "data" / "query.npy")[:5]
        folder = found.root / name / "data" / "new"
        folder.mkdir(exist_ok=True)
        np.save(folder / ".camera.npy", samples)
        (folder / ".camera.npy").rename(folder / "camera.npy")
    summary = result_of(found.coordinator(method, "--rounds", 4, "--min-devices", len(PARTICIPANTS), "--deadline", 60))
    assert [row["round"] for row in summary["rounds"]] == [1, 2, 3, 4]
    assert [row["counted"] for row in summary["rounds"]] == [len(PARTICIPANTS)] * 4
    assert summary["refused"] == {}
    for name, process in devices.items():
        told = farewell(process)
        assert (told["updates"], told["accepted"], told["refused"], told["installed"]) == (4, 4, {}, 1)
        answer = json.loads((found.root / name / "data" / "predictions" / "camera.json").read_text())
        assert len(answer["labels"]) == 5
        assert answer["bundle"] == told["bundle"]
    before = accuracy(found, found.run.final_state())
    after = accuracy(found, tensors(Path(summary["state_file"])))
    assert after > before + 0.1, (before, after)
    check_last_round(found, 3, PARTICIPANTS)
    check_last_round(found, 4, PARTICIPANTS)
    status = found.status()
    assert status["open"] is None
    assert [row["result"] for row in status["rounds"]][-1] == summary["state"]


@pytest.mark.thorough  # test_exchange.py sends prototypes in every run
def test_prototypes_go_through_the_same_rounds(federation: Make) -> None:
    found = federation("hyperfedzero")
    devices = [found.device(name) for name in PARTICIPANTS]
    devices.append(found.device("new-00"))  # it has no labels and declines
    summary = result_of(found.coordinator("prototypes", "--rounds", 1, "--min-devices", 4, "--deadline", 20))
    assert summary["rounds"][0]["counted"] >= 4
    tree = decode_tensors(Path(summary["state_file"]).read_bytes())
    assert tree["means"].shape == (len(tree["classes"]), found_dimension(found))
    assert int(tree["devices"][0]) == summary["rounds"][0]["counted"]
    for process in devices:
        farewell(process)


def found_dimension(found: FederationOf) -> int:
    from protocol.bundle import open_bundle
    from protocol.trust import open_trusted

    return open_bundle(found.release / "bundle", open_trusted(found.release / "release.pub")).manifest.feature_dimension()


def test_processes_are_killed_and_rounds_go_on(federation: Make) -> None:
    """Each device in turn, and the coordinator, die without a word; nothing is lost and nothing counts twice."""
    found = federation("fedavg")
    words = ("--rounds", 8, "--min-devices", len(PARTICIPANTS), "--deadline", 60)
    devices = {name: found.device(name) for name in PARTICIPANTS}
    coordinator = found.coordinator("fedavg", *words)
    journal_file = found.root / "run" / "coordinator" / "journal.db"
    for turn, name in enumerate(PARTICIPANTS, 1):
        wait_for(
            lambda turn=turn: journal_file.exists() and (found.root / "run/coordinator/states").exists() and rounds_done(found) >= turn
        )
        devices[name].kill()
        devices[name].communicate()
        coordinator.kill()
        coordinator.communicate()
        devices[name] = found.device(name)
        coordinator = found.coordinator("fedavg", *words)
    summary = result_of(coordinator)
    assert [row["counted"] for row in summary["rounds"]] == [len(PARTICIPANTS)] * 8
    check_last_round(found, 8, PARTICIPANTS)
    for process in devices.values():
        assert farewell(process)["refused"] in ({}, {"duplicate": 1})


def rounds_done(found: FederationOf) -> int:
    journal = Journal(found.root / "run" / "coordinator")
    try:
        return sum(row["phase"] == "published" for row in journal.history())
    finally:
        journal.close()


def test_pause_status_and_resume(federation: Make) -> None:
    found = federation("fedavg")
    coordinator = found.coordinator("fedavg", "--rounds", 2, "--min-devices", 2, "--deadline", 60, "--participant", PARTICIPANTS[0],
                                    "--participant", PARTICIPANTS[1])  # fmt: skip
    wait_for((found.root / "run" / "coordinator" / "journal.db").exists)
    run = ("--run", found.root / "run", "--json")
    assert result_of(found.start("coordinator", "pause", *run)) == {"paused": True}
    devices = [found.device(name) for name in PARTICIPANTS[:3]]
    wait_for(lambda: found.status()["present"] >= 3)
    assert found.status()["paused"]
    assert found.status()["rounds"] == []
    assert result_of(found.start("coordinator", "resume", *run)) == {"paused": False}
    summary = result_of(coordinator)
    assert [row["asked"] for row in summary["rounds"]] == [2, 2]
    for process in devices:
        farewell(process)


def test_without_devices_the_coordinator_gives_up_with_its_own_code(federation: Make) -> None:
    found = federation("fedavg")
    process = found.coordinator("fedavg", "--rounds", 1, "--patience", 1)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 52, output
    assert "too few devices" in output
