"""Reading run folders: what is missing or damaged is named, and so is what to do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InputError, RunFolderError
from tests.trainer.report.made_up_runs import MadeUp, change
from trainer.report import write_report
from trainer.report.comparison import compare
from trainer.report.figures import FIGURES
from trainer.report.records import read_record
from trainer.runs import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return MadeUp("hyperfedzero", embedding=2, uses="samples").write(tmp_path / "run")


def test_a_run_that_has_not_ended(run: Run) -> None:
    (run.path / "evaluation.json").unlink()
    run.forget_after(4)
    with pytest.raises(RunFolderError, match="has not ended") as caught:
        read_record(run)
    assert caught.value.got == "4 rounds"
    assert caught.value.hint == f"fedtailor train --resume {run.path}"


def test_a_run_of_an_earlier_version(run: Run) -> None:
    (run.path / "devices.json").unlink()
    with pytest.raises(RunFolderError, match=r"holds no devices\.json") as caught:
        read_record(run)
    assert str(run.path) in caught.value.what
    assert "train it again" in (caught.value.hint or "")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b"\xff\xfe", b"{}", b"[" * 100_000])
@pytest.mark.parametrize("name", ["evaluation.json", "devices.json", "engine.json", "config.json"])
def test_a_damaged_file_is_named(run: Run, name: str, content: bytes) -> None:
    (run.path / name).write_bytes(content)
    with pytest.raises(RunFolderError) as caught:
        read_record(Run.open(run.path))
    assert str(run.path) in caught.value.what
    assert name == "config.json" or name in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    "content", ["", "{\n", "[]\n", '{"round": 0}\n', '{"round": "0", "loss": 1}\n', '{"round": 0, "loss": "1"}\n', "[" * 99999 + "\n"]
)
def test_damaged_metrics_are_named(run: Run, content: str) -> None:
    (run.path / "metrics.jsonl").write_text(content)
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl"):
        read_record(run)


def spoil_devices(name: str, value: Any) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        content = json.loads((path / "devices.json").read_text())
        content["devices"]["new-000"][name] = value
        (path / "devices.json").write_text(json.dumps(content))

    return spoil


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "accuracy over one": ("evaluation.json", lambda path: change(path / "evaluation.json", zacc=1.5)),
    "accuracy as text": ("evaluation.json", lambda path: change(path / "evaluation.json", zacc="0.5")),
    "accuracy as truth": ("evaluation.json", lambda path: change(path / "evaluation.json", zacc=True)),
    "infinite seconds": ("evaluation.json", lambda path: change(path / "evaluation.json", train_seconds=math.inf)),
    "negative bytes": ("evaluation.json", lambda path: change(path / "evaluation.json", bytes_up=-1)),
    "enormous bytes": ("evaluation.json", lambda path: change(path / "evaluation.json", bytes_up=10**400)),
    "enormous seconds": ("evaluation.json", lambda path: change(path / "evaluation.json", train_seconds=10**400)),
    "unknown use": ("evaluation.json", lambda path: change(path / "evaluation.json", new_device_uses="everything")),
    "small matrix": ("evaluation.json", lambda path: change(path / "evaluation.json", confusion=[[1]])),
    "ragged matrix": ("evaluation.json", lambda path: change(path / "evaluation.json", confusion=[[1], [1, 2]])),
    "devices as a list": ("evaluation.json", lambda path: change(path / "evaluation.json", new_devices=[0.5])),
    "too many classes": ("devices.json", spoil_devices("class_counts", [1] * 4)),
    "half a sample": ("devices.json", spoil_devices("class_counts", [0.5])),
    "endless embedding": ("devices.json", spoil_devices("embedding", [1.0, math.inf])),
    "short embedding": ("devices.json", spoil_devices("embedding", [1.0])),
    "empty embedding": ("devices.json", spoil_devices("embedding", [])),
    "health as text": ("devices.json", lambda path: change(path / "devices.json", embedding_health="fine")),
    "seed as text": ("config.json", lambda path: change(path / "config.json", seed="0")),
    "method as number": ("config.json", lambda path: change(path / "config.json", method=3)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_values_of_the_wrong_kind_are_refused(run: Run, name: str) -> None:
    file, spoil = DAMAGES[name]
    spoil(run.path)
    with pytest.raises(RunFolderError) as caught:
        read_record(Run.open(run.path))
    assert caught.value.what == f"{run.path / file} is damaged"
    assert caught.value.got
    assert len(caught.value.sentence()) < 400


def test_a_refused_run_leaves_the_old_page(run: Run, tmp_path: Path) -> None:
    good = MadeUp().write(tmp_path / "good")
    (run.path / "devices.json").unlink()
    (tmp_path / "report.html").write_text("old")
    with pytest.raises(RunFolderError):
        write_report([good, run], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == "old"


def test_no_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_report([], tmp_path / "report.html")


def test_runs_that_differ_in_the_seed_form_a_group(tmp_path: Path) -> None:
    runs = [MadeUp(seed=seed).write(tmp_path / f"run-{seed}") for seed in (2, 0)]
    other = replace(MadeUp(), settings={"learning_rate": 0.5}).write(tmp_path / "other")
    comparison = compare([*runs, other, runs[0]])
    assert comparison.names == ("run-2", "run-0", "other")
    assert [group.label for group in comparison.groups] == ["fedavg (learning_rate=0.1)", "fedavg (learning_rate=0.5)"]
    assert [record.config.seed for record in comparison.groups[0].records] == [0, 2]
    assert comparison.common_seeds(comparison.groups[1]) == [0]


def test_a_repeated_seed_counts_once(tmp_path: Path) -> None:
    runs = [MadeUp().write(tmp_path / name / "run") for name in ("a", "b")]
    comparison = compare(runs)
    assert comparison.names == tuple(str(run.path) for run in runs)
    assert comparison.repeated == (comparison.names[1],)
    assert [len(group.records) for group in comparison.groups] == [1]


def test_labels_are_unique_however_much_differs(tmp_path: Path) -> None:
    made_up = [MadeUp(settings={"name": letter * 80}) for letter in "abc"]
    labels = [group.label for group in compare([each.write(tmp_path / str(place)) for place, each in enumerate(made_up)]).groups]
    assert labels == ["fedavg, variant 1", "fedavg, variant 2", "fedavg, variant 3"]


def test_methods_on_different_cuts_are_not_paired(tmp_path: Path) -> None:
    runs = [MadeUp().write(tmp_path / "a"), MadeUp("other", participants=5).write(tmp_path / "b")]
    comparison = compare(runs)
    assert comparison.common_seeds(comparison.groups[1]) == []


def test_differences_are_of_the_common_seeds(tmp_path: Path) -> None:
    first = [MadeUp(seed=seed).write(tmp_path / f"a-{seed}") for seed in (0, 1, 2)]
    second = [MadeUp("other", seed=seed).write(tmp_path / f"b-{seed}") for seed in (1, 2, 5)]
    comparison = compare([*first, *second])
    expected = sum(second[place].evaluation()["zacc"] - first[place + 1].evaluation()["zacc"] for place in (0, 1)) / 2
    figure = next(figure for figure in FIGURES if figure.name == "zacc")
    assert comparison.common_seeds(comparison.groups[1]) == [1, 2]
    assert comparison.groups[1].difference(figure, comparison.groups[0]).mean == pytest.approx(expected)
