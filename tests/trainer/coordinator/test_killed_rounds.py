"""The coordinator's process is killed at its writes: the next one goes on to the same bits, and what was acknowledged counts."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edge_runtime.bundle import Bundle
from tests.protocol.lossy import CALM
from tests.releases import Release
from tests.source_tree import ROOT
from tests.trainer.coordinator.bench import DEVICES, expected_states
from tests.trainer.coordinator.memory_federation import MemoryFederation

RECOVERY_SECONDS = 5.0


def lives(folder: Path, stride: int, *more: Path) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.trainer.coordinator.killed_rounds", str(folder), str(stride), *map(str, more)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def check(found: list[dict[str, Any]], undisturbed: str) -> None:
    for life in found:
        assert life["killed"], life
        assert life["code"] == 0, life
        assert life["digest"] == undisturbed, life
        assert life["counted"] == {"7": sorted(DEVICES), "8": sorted(DEVICES)}, life
        assert all(line.endswith("accepted") for line in life["told"]), life
        assert not [name for name in life["files"] if "/." in name and "/.boot." not in name], (
            life
        )  # a boot counter that was not finished is written anew
    worst, totals = max(life["seconds"] for life in found), {life["where"]: life["of"] for life in found}
    sys.stderr.write(f"killed {len(found)} times at writes of {sum(totals.values())}, slowest recovery {worst:.2f} s\n")
    assert worst < RECOVERY_SECONDS
    assert totals.keys() == {"sqlite", "disk"}


@pytest.mark.parametrize("stride", [23, pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.thorough)])
def test_a_coordinator_that_was_killed_goes_on_to_the_same_result(tmp_path: Path, stride: int) -> None:
    check(lives(tmp_path, stride), hashlib.sha256(expected_states(2)[1]).hexdigest())


@pytest.mark.parametrize("stride", [pytest.param(41, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.thorough)])
def test_agents_that_were_killed_go_on_to_the_same_result(release: Release, tmp_path: Path, stride: int) -> None:
    federation = MemoryFederation(tmp_path / "calm", Bundle.open(release.bundle, release.trusted), 0, CALM)
    assert federation.run(60)
    undisturbed = hashlib.sha256(federation.rounds.state).hexdigest()
    federation.close()
    check(lives(tmp_path / "killed", stride, release.bundle, release.trusted), undisturbed)
