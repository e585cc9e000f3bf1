"""The pages on training steps and on keys tell the truth: what they show runs, in order, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedtailor import main
from tests.releases import Release, train_run
from tests.source_tree import ROOT
from tests.test_readme import environment
from trainer.data.datasets import load_dataset
from trainer.methods.registry import method_settings


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def run_commands(name: str, run: Path, expected: int) -> None:
    """Run what a page shows, with a run of ours in place of its own, in the current folder."""
    CliRunner().invoke(main, ["keys", "new", "release", "--out", "keys"])
    commands = re.findall(r"^    fedtailor (.*)$", page(name), re.MULTILINE)
    assert commands
    for command in commands:
        words = [str(run) if word == "runs/first" else word for word in command.split()]
        answer = CliRunner().invoke(main, words)
        assert answer.exit_code == expected, f"{command}\n{answer.output}{answer.exception}"


@pytest.mark.slow
def test_a_device_trains_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = train_run(tmp_path / "run", "fedavg", method_settings("fedavg", {"model": "mlp-6", "learning_rate": 0.1}))
    dataset = load_dataset("digits")
    (tmp_path / "camera").mkdir()
    np.save(tmp_path / "camera" / "support.npy", dataset.samples[:300])
    np.save(tmp_path / "camera" / "labels.npy", dataset.labels[:300])
    monkeypatch.chdir(tmp_path)
    run_commands("training-on-device.md", run.path, 0)
    snippets = re.findall(r"```python\n(.*?)```", page("training-on-device.md"), re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        words = [sys.executable, "-c", snippet]
        answer = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
        assert answer.returncode == 0, answer.stderr
    assert 0 < float(answer.stdout.splitlines()[-1]) < 1.2


@pytest.mark.parametrize("name", ["keys.md", "precision.md"])
def test_every_command_runs_in_order(name: str, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_commands(name, release.run.path, 10 if name == "precision.md" else 0)  # this run has set nothing aside, and is told so
