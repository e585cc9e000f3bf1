"""Comparisons: each training once, nothing done twice, no run of other settings taken for one's own, intervals as they should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedtailor import main
from protocol.errors import DivergenceError, InputError, RunFolderError
from trainer.comparison import Job, Result, _sentence, mixed_environments, pending, plan_jobs, read_results, run_jobs, summarise
from trainer.comparison_cli import train_arguments
from trainer.experiments import Experiment
from trainer.runs import Run
from trainer.statistics import bootstrap_interval
from trainer.training import Training

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
data = "digits"
rounds = 2
engine = "loop"
threads = 1
model = "mlp-4"
[split]
participants = 3
new_devices = 2
validation_share = 0.1
[methods.fedavg]
local_steps = 2
[methods.ditto]
local_steps = 2
[variants.slow]
method = "fedavg"
settings = { learning_rate = 0.01 }
"""
SPLIT = {"participants": 3, "new_devices": 2, "validation_share": 0.1}
STEPS = {"local_steps": 2}
EXPERIMENT = Experiment(
    rounds=2,
    engine="loop",
    threads=1,
    model="mlp-4",
    split=SPLIT,
    methods={"fedavg": STEPS, "ditto": STEPS},
    variants={"slow": {"method": "fedavg", "settings": {"learning_rate": 0.01}}},
)
NAMES = ["fedavg", "slow", "fedavg+em"]


def test_a_method_and_its_correction_share_a_training() -> None:
    jobs = plan_jobs(["fedavg+em", "ditto", "fedavg", "slow+em"], range(3, 5), Path("f"))
    assert jobs == [Job(name, seed, Path("f") / f"{name}-seed{seed}") for seed in (3, 4) for name in ("fedavg", "ditto", "slow")]


def train(job: Job, experiment: Experiment = EXPERIMENT, rounds: int | None = None) -> None:
    """Train a job here; with ``rounds``, break off after so many."""
    method, own = experiment.resolve(job.name)
    training = Training.start(own, method, job.seed, job.folder)
    if rounds is None:
        training.finish()
        return

    def observe(done: int, loss: float) -> None:
        if done == rounds:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        training.finish(observe)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a comparison's folder in which one training was interrupted and one never begun."""
    path = tmp_path_factory.mktemp("comparison")
    first, second, third, _ = plan_jobs(NAMES, (0, 1), path)
    train(first)
    train(second)
    train(third, rounds=1)
    return path


def test_what_is_done_is_not_done_again(folder: Path) -> None:
    jobs = plan_jobs(NAMES, (0, 1), folder)
    assert pending(jobs, EXPERIMENT) == jobs[2:]
    same = replace(EXPERIMENT, checkpoint_every=7, methods={"fedavg": {**STEPS, "learning_rate": 0.1}})
    assert pending(jobs, same) == jobs[2:]


OTHERS: dict[str, dict[str, Any]] = {
    "rounds": {"rounds": 3},
    "fraction": {"fraction": 0.5},
    "engine": {"engine": "cohort"},
    "threads": {"threads": 2},
    "settings": {"model": "mlp-5"},
    "split": {"split": {**SPLIT, "concentration": 9.0}},
    "split left out": {"split": {}},
    "correction": {"correction": ("uniform",)},
    "settings of the method": {"methods": {"fedavg": {"local_steps": 3}}},
    "settings left out": {"methods": {}},
    "settings of the variant": {"variants": {"slow": {"method": "fedavg"}}},
    "method of the variant": {"variants": {"slow": {"method": "fedprox"}}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_folder_of_other_settings_is_refused(folder: Path, name: str) -> None:
    field = {"method of the variant": "method"}.get(name, name.split(maxsplit=1)[0])
    with pytest.raises(RunFolderError, match=rf"holds another run.*another {field}.*name another folder"):
        pending(plan_jobs(["slow"] if "variant" in name else NAMES, (0, 1), folder), replace(EXPERIMENT, **OTHERS[name]))


def test_an_interrupted_training_of_other_settings_is_refused_too(folder: Path) -> None:
    third = plan_jobs(NAMES, (0, 1), folder)[2]
    assert not (third.folder / "evaluation.json").exists()
    with pytest.raises(RunFolderError, match="holds another run"):
        pending([third], replace(EXPERIMENT, rounds=5))
    with pytest.raises(RunFolderError, match="another seed"):
        pending([replace(third, seed=0)], EXPERIMENT)


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "fedavg-seed0").mkdir()
    (tmp_path / "fedavg-seed0" / "config.json").write_text("{")
    with pytest.raises(RunFolderError, match="is not a run folder"):
        pending(plan_jobs(["fedavg"], [0], tmp_path), EXPERIMENT)


@pytest.mark.parametrize(
    ("stdout", "stderr", "expected"),
    [
        (
            json.dumps({"error": "DivergenceError", "message": "training diverged in round 3", "exit_code": 61}),
            "",
            "training diverged in round 3",
        ),
        ("", "Traceback\n  a line\nMemoryError\n", "MemoryError"),
        ("[]", "Error: No such option\n", "Error: No such option"),
        ("", "", "exit code -9"),
    ],
)
def test_the_sentence_of_a_failed_training_is_found(stdout: str, stderr: str, expected: str) -> None:
    assert _sentence(subprocess.CompletedProcess([], -9, stdout, stderr)) == expected


def test_a_failing_training_ends_the_comparison_with_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    wild = tmp_path / "wild.toml"
    wild.write_text(CONFIG.replace("[methods.fedavg]", "[methods.fedavg]\nlearning_rate = 1e30\nclip_norm = 1e30"))
    done: list[int] = []
    with pytest.raises(InputError) as caught:
        run_jobs(plan_jobs(["fedavg"], [4], tmp_path), ["--config", str(wild)], 1, done.append)
    sentence = caught.value.sentence()
    assert sentence.startswith("training fedavg with seed 4 failed: got training diverged in round 0, first on participant-0")
    assert "lower learning_rate" in sentence
    assert str(tmp_path / "fedavg-seed4") in sentence
    assert done == []
    assert DivergenceError.__name__ not in sentence


def test_options_go_on_to_the_trainings() -> None:
    options = {"config": Path("a.toml"), "rounds": 3, "new_devices": 2, "model": None, "names": ("x",), "seeds": 5, "first_seed": 0}
    others = {"workers": 2, "out": Path("o"), "as_json": True, "quiet": True}
    assert train_arguments({**options, **others}) == ["--config", "a.toml", "--rounds", "3", "--new-devices", "2"]


def results() -> list[Result]:
    values = {"first": (0.9, 0.8, 0.7), "second": (0.6, 0.7, 0.65)}
    return [
        Result(name, seed, {"gacc": each, "pacc": each / 2, "zacc": each / 4}, 2.0 + seed, 3.0 * (1 + seed), "nothing")
        for seed in range(3)
        for name, each in ((name, own[seed]) for name, own in values.items())
    ]


def test_intervals_are_bootstrap_intervals_of_paired_seeds() -> None:
    first, second = summarise(results())
    assert (first.method, second.method) == ("first", "second")
    assert first.means["gacc"] == bootstrap_interval([0.9, 0.8, 0.7])
    assert second.means["zacc"] == bootstrap_interval([0.6 / 4, 0.7 / 4, 0.65 / 4])
    assert second.differences["gacc"] == bootstrap_interval([0.9 - 0.6, 0.8 - 0.7, 0.7 - 0.65])
    assert first.differences["pacc"] == (0.0, 0.0, 0.0)
    assert (second.megabytes, second.seconds) == (3.0, 6.0)


def check_json(content: dict[str, Any], folder: Path, seeds: tuple[int, ...]) -> None:
    """Look at every number that a comparison prints."""
    assert content["folder"] == str(folder)
    assert [(row["method"], row["seed"]) for row in content["runs"]] == [(name, seed) for seed in seeds for name in NAMES]
    for row in content["runs"]:
        name = row["method"]
        evaluation = Run.open(folder / f"{name.removesuffix('+em')}-seed{row['seed']}").evaluation()
        source = evaluation["shifted"] if name.endswith("+em") else evaluation
        assert {metric: row[metric] for metric in ("gacc", "pacc", "zacc")} == {
            metric: source[metric] for metric in ("gacc", "pacc", "zacc")
        }
        assert row["bytes"] == evaluation["bytes_up"] + evaluation["bytes_down"] > 0
        assert row["seconds"] == evaluation["train_seconds"] > 0
        assert row["new_device_uses"] == ("samples" if name.endswith("+em") else "nothing")
    assert list(content["summary"]) == NAMES
    for name, summary in content["summary"].items():
        own = [row["zacc"] for row in content["runs"] if row["method"] == name]
        assert summary["mean"]["zacc"] == bootstrap_interval(own)._asdict()
        assert set(summary["first_minus_this"]) == {"gacc", "pacc", "zacc"}


def test_json_of_finished_runs(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    words = ["compare", *NAMES, "--config", str(config), "--seeds", "1", "--out", str(folder), "--json", "--quiet"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    check_json(json.loads(result.stdout), folder, (0,))
    assert (folder / "report.html").is_file()
    assert [each.seed for each in read_results(NAMES, [0], folder)] == [0, 0, 0]


def test_runs_of_different_versions_are_pointed_out(folder: Path) -> None:
    runs = [Run.open(folder / name) for name in ("fedavg-seed0", "slow-seed0")]
    assert mixed_environments(runs) == []
    runs[1].config = replace(runs[1].config, environment={**runs[1].config.environment, "torch": "1.0"})
    (warning,) = mixed_environments(runs)
    assert warning.startswith("the runs differ in torch: 1.0 and ")


def test_an_unknown_method_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["compare", "fedavg", "magic+em", "--out", str(tmp_path / "out")])
    assert result.exit_code == InputError.exit_code
    assert "unknown method or variant" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_real_comparison_on_two_workers_carries_on_where_it_stopped(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    out = tmp_path / "out"
    jobs = plan_jobs(NAMES, (0, 1), out)
    train(jobs[0])
    train(jobs[1], rounds=1)
    before = (jobs[0].folder / "metrics.jsonl").read_bytes()
    words = ["compare", *NAMES, "--config", config, "--seeds", 2, "--workers", 2, "--out", out, "--json", "--quiet"]
    command = [sys.executable, "-m", "fedtailor", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr
    check_json(json.loads(done.stdout), out, (0, 1))
    assert (jobs[0].folder / "metrics.jsonl").read_bytes() == before
    assert all(len(Run.open(job.folder).metrics()) == 2 for job in jobs)
