"""The page about export tells the truth: its snippets run, and its table is the one that export checks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from export.runtimes import OLDEST_SERVED, RELEASES
from fedtailor import main
from tests.releases import Release
from tests.source_tree import ROOT
from tests.test_readme import environment

PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ROWS = re.findall(r"^\| (1\.[\d., to]+) \| (\d+) \| (\d+) \| (yes|no) \| (.*) \|$", PAGE, re.MULTILINE)


def versions(text: str) -> list[tuple[int, int]]:
    """Return the releases that a row is about."""
    numbers = [int(minor) for minor in re.findall(r"1\.(\d+)", text)]
    minors = range(numbers[0], numbers[-1] + 1) if " to " in text else numbers
    return [(1, minor) for minor in minors]


def test_the_table_is_the_one_that_export_checks() -> None:
    told = {
        version: (int(opset), int(ir), adapters == "yes", pythons)
        for row, opset, ir, adapters, pythons in ROWS
        for version in versions(row)
    }
    assert list(told) == [each.version for each in RELEASES]
    for release in RELEASES:
        opset, ir_version, adapters, pythons = told[release.version]
        assert (opset, ir_version, adapters) == (release.opset, release.ir_version, release.has_adapters)
        if release.version >= OLDEST_SERVED:
            assert pythons == f"3.{release.pythons[0]} to 3.{release.pythons[1]}"


def test_the_snippets_were_found() -> None:
    assert len(SNIPPETS) == 3


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3))
def test_every_snippet_runs(tmp_path: Path, place: int) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", SNIPPETS[place]], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_every_command_runs(release: Release, tmp_path: Path) -> None:
    commands = re.findall(r"^    fedtailor (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for place, command in enumerate(commands):
        own = {"runs/first": release.run.path, "keys/release.key": release.root / "release.key", "bundle/": tmp_path / f"bundle-{place}"}
        words = [str(own.get(word, word)) for word in command.split()]
        answer = CliRunner().invoke(main, words)
        assert answer.exit_code == 0, answer.output
