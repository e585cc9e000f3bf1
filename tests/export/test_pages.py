"""The pages on training steps and on keys tell the truth: what they show runs, in order, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedtailor import main
from tests.releases import Release
from tests.source_tree import ROOT
from tests.test_readme import environment


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_step_of_ones_own_trains(tmp_path: Path) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", page("training-on-device.md"), re.DOTALL)
    words = [sys.executable, "-c", snippet]
    answer = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert 0 < float(answer.stdout.splitlines()[-1]) < 1.2


@pytest.mark.parametrize("name", ["keys.md", "precision.md", "training-on-device.md"])
def test_every_command_runs_in_order(name: str, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(main, ["keys", "new", "release", "--out", "keys"])
    commands = re.findall(r"^    fedtailor (.*)$", page(name), re.MULTILINE)
    assert commands
    for command in commands:
        words = [str(release.run.path) if word == "runs/first" else word for word in command.split()]
        answer = CliRunner().invoke(main, words)
        expected = 10 if name == "precision.md" else 0  # the release's run has set nothing aside, and is told so
        assert answer.exit_code == expected, f"{command}\n{answer.output}{answer.exception}"
