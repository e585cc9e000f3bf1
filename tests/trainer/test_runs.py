"""Run folders that are interrupted, damaged, contested or finished: the same result, or a sentence that says what is wrong."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protocol.errors import DivergenceError, FedtailorError, RunFolderError
from tests.trainer.engine.toys import Toy
from tests.trainer.methods.small_federation import make_clients
from trainer.claims import FolderClaim
from trainer.engine.base import RoundKey
from trainer.engine.loop import LoopEngine
from trainer.experiments import Experiment
from trainer.runs import Run, RunConfig
from trainer.simulation import Progress, check_finite
from trainer.training import Training

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
SETTINGS: dict[str, Any] = {"model": "mlp-4", "local_steps": 2, "batch_size": 8}
SMALL = Experiment(
    rounds=8,
    engine="loop",
    threads=1,
    fraction=0.7,
    checkpoint_every=3,
    split={"participants": 3, "new_devices": 2, "validation_share": 0.1},
    methods={"ditto": SETTINGS, "fedavg": SETTINGS},
)
METHODS = ("fedavg", "ditto")  # without private states, and with them


class Stopped(Exception):  # noqa: N818  # no fault
    """A training was interrupted."""


def start(folder: Path, method: str = "fedavg", experiment: Experiment = SMALL) -> Training:
    return Training.start(experiment, method, 3, folder)


def stop_after(training: Training, rounds: int) -> None:
    """Train some rounds and break off without any cleaning up."""

    def observe(done: int, loss: float) -> None:
        if done == rounds:
            raise Stopped

    with pytest.raises(Stopped):
        training.finish(observe)


def resume(folder: Path) -> Training:
    return Training.resume(folder)


def outcome(folder: Path) -> dict[str, Any]:
    """Return all of a finished run that must not depend on interruptions."""
    evaluation = json.loads((folder / "evaluation.json").read_bytes())
    assert evaluation.pop("train_seconds") > 0
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in metrics:
        assert row.pop("seconds") > 0
    checkpoints = {path.name: path.read_bytes() for path in sorted((folder / "checkpoints").iterdir())}
    return {"evaluation": evaluation, "metrics": metrics, "checkpoints": checkpoints, "devices": (folder / "devices.json").read_bytes()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of undisturbed runs."""
    folder = tmp_path_factory.mktemp("finished")
    for method in METHODS:
        start(folder / method, method).finish()
    return {method: folder / method for method in METHODS}


def test_a_run_leaves_what_its_page_says(finished: dict[str, Path]) -> None:
    result = outcome(finished["ditto"])
    assert list(result["checkpoints"]) == [f"round-{rounds:05d}.safetensors" for rounds in (3, 6, 8)]
    assert [row["round"] for row in result["metrics"]] == list(range(8))
    assert result["evaluation"]["local_steps"] == 8 * 2 * 2  # 8 rounds, two of three clients, two steps
    run = Run.open(finished["ditto"])
    private = run.progress(8).private
    assert set(private) <= {f"participant-{place:02d}" for place in range(3)}
    assert all(name.startswith("personal.") for state in private.values() for name in state)
    assert run.final_state().keys() == run.progress(3).server.keys()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stops", [(1,), (3,), (5, 6), (2, 2, 8)], ids=str)
def test_an_interrupted_run_ends_as_an_undisturbed_one(
    tmp_path: Path, finished: dict[str, Path], method: str, stops: tuple[int, ...]
) -> None:
    stop_after(start(tmp_path / "run", method), stops[0])
    for rounds in stops[1:]:
        stop_after(resume(tmp_path / "run"), rounds)
    resume(tmp_path / "run").finish()
    assert outcome(tmp_path / "run") == outcome(finished[method])


def interrupted(folder: Path, finished: Path, *gone: str) -> Path:
    """Return a copy of a finished run from which some files are gone, by default its evaluation."""
    shutil.copytree(finished, folder)
    for name in gone or ("evaluation.json",):
        (folder / name).unlink()
    return folder


def test_only_the_evaluation_is_left_to_do(tmp_path: Path, finished: dict[str, Path]) -> None:
    folder = interrupted(tmp_path / "run", finished["ditto"], "evaluation.json", "devices.json")
    resume(folder).finish()
    assert outcome(folder) == outcome(finished["ditto"])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "one byte short": lambda data: data[:-1],
    "one byte more": lambda data: data + b"x",
    "another header": lambda data: b"\xff" * 16 + data[16:],
    "text": lambda data: b"not a checkpoint at all",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, finished: dict[str, Path], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = interrupted(tmp_path / "run", finished["fedavg"])
    last = folder / "checkpoints" / "round-00008.safetensors"
    last.write_bytes(DAMAGES[damage](last.read_bytes()))
    with pytest.raises(RunFolderError, match=r"round-00008\.safetensors is damaged"):
        Run.open(folder).final_state()
    training = resume(folder)
    assert training.progress.rounds == 6
    assert any("round-00008.safetensors is damaged" in record.getMessage() for record in caplog.records)
    training.finish()
    assert outcome(folder) == outcome(finished["fedavg"])


def test_without_any_checkpoint_a_run_begins_again(tmp_path: Path, finished: dict[str, Path]) -> None:
    folder = interrupted(tmp_path / "run", finished["fedavg"])
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"")
    training = resume(folder)
    assert training.progress.rounds == 0
    training.finish()
    assert outcome(folder) == outcome(finished["fedavg"])


@pytest.mark.parametrize("kept", [0, 4, 7])
def test_rounds_without_metrics_are_done_again(tmp_path: Path, finished: dict[str, Path], kept: int) -> None:
    folder = interrupted(tmp_path / "run", finished["fedavg"])
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:kept]) + lines[kept][:10])  # the line after is half-written
    training = resume(folder)
    assert training.progress.rounds == kept // 3 * 3
    training.finish()
    assert outcome(folder) == outcome(finished["fedavg"])


@pytest.mark.parametrize("line", ["{nonsense", "[]", "{}", '{"round": "two"}', "[" * 100_000])
def test_damaged_metrics_are_named(tmp_path: Path, finished: dict[str, Path], line: str) -> None:
    folder = interrupted(tmp_path / "run", finished["fedavg"])
    path = folder / "metrics.jsonl"
    path.write_text(line + "\n" + path.read_text())
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl is damaged"):
        resume(folder)


def test_what_interrupted_writes_left_is_cleared(tmp_path: Path, finished: dict[str, Path]) -> None:
    folder = interrupted(tmp_path / "run", finished["fedavg"])
    left = [
        folder / ".evaluation.json.abc123",
        folder / ".metrics.jsonl.abc123",
        folder / "checkpoints" / ".round-00006.safetensors.abc123",
    ]
    for path in left:
        path.write_bytes(b"half")
    assert Run.open(folder).checkpoint_rounds() == [3, 6, 8]
    resume(folder)
    assert not any(path.exists() for path in left)


def test_a_folder_left_by_a_start_that_was_stopped_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / ".config.json.abc123").write_bytes(b"{")
    assert Run.open(start(tmp_path / "run").run.path).config.method == "fedavg"


@pytest.mark.parametrize("name", ["notes.txt", "checkpoints/round-00003.safetensors", ".hidden"])
def test_a_folder_that_holds_something_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / name).write_text("keep me")
    with pytest.raises(RunFolderError, match="is not empty"):
        start(tmp_path / "run")
    assert (tmp_path / "run" / name).read_text() == "keep me"
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_finished_run_is_not_resumed(finished: dict[str, Path]) -> None:
    with pytest.raises(RunFolderError, match=r"has ended: got 8 rounds"):
        resume(finished["fedavg"])


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{}", b'{"split": 3}', b"\xff"])
def test_what_is_no_run_is_not_resumed(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunFolderError, match="is not a run folder"):
        resume(tmp_path)


def changed_table(path: Path, change: float) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(120, 4)).round(3)
    rows[7, 2] += change
    lines = [",".join(map(str, row)) + f",{'ab'[place % 2]}" for place, row in enumerate(rows)]
    path.write_text("a,b,c,d,label\n" + "\n".join(lines) + "\n")


def test_changed_data_are_noticed(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    changed_table(table, 0.0)
    experiment = replace(SMALL, data=str(table), split={"participants": 2, "new_devices": 1, "minimum_samples": 5, "concentration": 10.0})
    stop_after(start(tmp_path / "run", experiment=experiment), 4)
    changed_table(table, 0.5)
    with pytest.raises(RunFolderError, match=r"the data of .* changed"):
        resume(tmp_path / "run")
    changed_table(table, 0.0)
    assert resume(tmp_path / "run").progress.rounds == 3
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines[:-1], lines[-1][:-1] + "c"]) + "\n")  # another class
    with pytest.raises(RunFolderError, match=r"the data of .* changed"):
        resume(tmp_path / "run")


def test_a_damaged_choice_of_engine_is_named(tmp_path: Path, finished: dict[str, Path]) -> None:
    folder = interrupted(tmp_path / "run", finished["fedavg"])
    (folder / "engine.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"engine\.json is damaged"):
        resume(folder)


def test_one_training_at_a_time(tmp_path: Path) -> None:
    first = start(tmp_path / "run")
    with pytest.raises(RunFolderError, match="is not empty"):
        start(tmp_path / "run")
    with pytest.raises(RunFolderError, match="is in use"):
        resume(tmp_path / "run")
    stop_after(first, 1)  # which lets others in
    second = resume(tmp_path / "run")
    with pytest.raises(RunFolderError, match="is in use"):
        resume(tmp_path / "run")
    del second
    resume(tmp_path / "run")


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from trainer.claims import FolderClaim
claim = FolderClaim(Path({str(tmp_path)!r}))
sys.stdout.write('ready\\n')
sys.stdout.flush()
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(RunFolderError, match="is in use"):
            FolderClaim(tmp_path)
        child.kill()
    FolderClaim(tmp_path).release()


def test_checkpoints_hold_thousands_of_private_states_and_numbers_of_any_size(tmp_path: Path) -> None:
    training = start(tmp_path / "run")
    private = {f"participant-{place:04d}": {name: torch.tensor([float(place)]) for name in "abcde"} for place in range(1000)}
    server = {"large": torch.tensor([1e30]), "scalar": torch.tensor(3), "exact": torch.tensor([1 / 3], dtype=torch.float64)}
    training.run.save_checkpoint(Progress(5, server, private))
    found = training.run.progress(5)
    assert {name: tensor.tolist() for name, tensor in found.server.items()} == {name: tensor.tolist() for name, tensor in server.items()}
    assert found.private.keys() == private.keys()
    assert all(torch.equal(tensor, found.private[device][name]) for device, own in private.items() for name, tensor in own.items())


def test_configurations_tell_what_differs(finished: dict[str, Path]) -> None:
    config = Run.open(finished["fedavg"]).config
    same = Run.open(finished["fedavg"]).config
    assert config.differences(same) == []
    assert config.differences(replace(same, environment={"python": "9"})) == []
    assert config.differences(replace(same, environment={"data": "0" * 16})) == ["data"]
    others: dict[str, Any] = {"rounds": 9, "fraction": 1.0, "engine": "cohort", "settings": {**config.settings, "learning_rate": 9.0}}
    assert config.differences(replace(same, **others)) == ["settings", "rounds", "fraction", "engine"]
    assert config.differences(replace(same, split=replace(same.split, concentration=9.0), correction=("pooled",))) == [
        "split",
        "correction",
    ]
    assert isinstance(config, RunConfig)


# Divergence.


def test_a_diverging_run_can_be_looked_at_and_carried_on(tmp_path: Path) -> None:
    """The pull overshoots, so that the weights grow beyond float32 after some rounds."""
    wild = {**SETTINGS, "mu": 1e4, "clip_norm": 0.0}
    experiment = replace(SMALL, rounds=60, fraction=1.0, methods={"fedprox": wild}, checkpoint_every=1)
    with pytest.raises(DivergenceError) as caught:
        start(tmp_path / "run", "fedprox", experiment).finish()
    sentence = caught.value.sentence()
    run = Run.open(tmp_path / "run")
    rounds = len(run.metrics())
    assert 3 < rounds < 60
    assert f"training diverged in round {rounds}, first on participant-0" in sentence
    assert "lower learning_rate" in sentence
    assert caught.value.exit_code == 61
    assert run.checkpoint_rounds() == list(range(1, rounds + 1))
    assert not (run.path / "evaluation.json").exists()
    assert all(torch.isfinite(tensor).all() for tensor in run.progress(rounds).server.values())
    with pytest.raises(DivergenceError) as again:
        resume(run.path).finish()
    assert again.value.sentence() == sentence


@pytest.mark.parametrize("wrong", ["losses", "update", "private", "server"])
def test_whatever_is_not_finite_is_traced_to_its_device(wrong: str) -> None:
    server = Toy().initial_state(0)
    result = LoopEngine(traced=False).run_round(Toy(), server, make_clients((9, 9, 9)), RoundKey(0, 0))
    check_finite(result, (server, *result.private.values()), 4)
    private = {"client-1": {"own": torch.tensor([1.0, float("inf")])}}
    after = {"w": torch.full((4, 4), float("nan"))}
    if wrong == "losses":
        result.losses[1] = float("nan")
    elif wrong == "update":
        result.updates.chunks[1]["w"][0, 0] = float("inf")
        server = after
    elif wrong == "private":
        result = replace(result, private=private)
    else:
        server = after
    where = "in the aggregate" if wrong == "server" else "first on client-1"
    with pytest.raises(DivergenceError, match=f"training diverged in round 4, {where}"):
        check_finite(result, (server, *result.private.values()), 4)


# The whole program, killed.

TRAIN = ("--data", "digits", "--rounds", "12", "--engine", "loop", "--threads", "1", "--checkpoint-every", "3", "--seed", "3", "--quiet")
QUICK = ("--set", "model=mlp-4", "--set", "local_steps=2", "--participants", "3", "--new-devices", "2", "--validation-share", "0.1")


def fedtailor(*words: object) -> list[str]:
    return [sys.executable, "-m", "fedtailor", *map(str, words)]


def run_to_end(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(fedtailor(*words), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=600)


def kill_when(folder: Path, lines: int, *words: object) -> None:
    """Start a command and kill it as soon as its metrics have so many lines; 0 for as soon as there is a folder."""
    metrics = folder / "metrics.jsonl"
    with subprocess.Popen(
        fedtailor(*words), cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        until = time.monotonic() + 300
        while child.poll() is None and time.monotonic() < until:
            if (folder / "config.json").exists() if lines == 0 else metrics.is_file() and metrics.read_bytes().count(b"\n") >= lines:
                break
        os.kill(child.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    """Return a function from a method to the outcome of a training that nobody killed, trained when first asked for."""

    @functools.cache
    def train(method: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(method) / "whole"
        assert run_to_end("train", method, *TRAIN, *QUICK, "--out", folder).returncode == 0
        return outcome(folder)

    return train


SOME = [(0,), (4, 8), (10, 11)]
MORE = [pytest.param(kills, marks=pytest.mark.thorough) for kills in [(1,), (3,), (5,)]]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kills", [*SOME, *MORE], ids=str)
def test_a_killed_training_resumes_to_the_same_bytes(
    tmp_path: Path, method: str, kills: tuple[int, ...], undisturbed: Callable[[str], dict[str, Any]]
) -> None:
    folder = tmp_path / "killed"
    kill_when(folder, kills[0], "train", method, *TRAIN, *QUICK, "--out", folder)
    for lines in kills[1:]:
        kill_when(folder, lines, "train", "--resume", folder, "--quiet")
    if not (folder / "evaluation.json").exists():  # else it was quicker than the kill
        done = run_to_end("train", "--resume", folder, "--quiet")
        assert done.returncode == 0, done.stderr
    assert outcome(folder) == undisturbed(method)


@pytest.mark.slow
def test_of_two_trainings_into_one_folder_one_is_refused(tmp_path: Path) -> None:
    words = fedtailor("train", "fedavg", *TRAIN, *QUICK, "--out", tmp_path / "run")
    children = [
        subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in "ab"
    ]
    sentences = [child.communicate(timeout=600)[1] for child in children]
    codes = [child.returncode for child in children]
    assert sorted(codes) == [0, RunFolderError.exit_code], sentences
    refused = sentences[codes.index(RunFolderError.exit_code)]
    assert "is not empty" in refused or "is in use" in refused
    assert refused.count("\n") == 1
    assert len(Run.open(tmp_path / "run").metrics()) == 12


def test_every_refusal_is_of_our_tree() -> None:
    assert issubclass(RunFolderError, FedtailorError)
