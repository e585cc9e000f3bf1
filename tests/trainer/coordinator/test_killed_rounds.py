"""The coordinator's process is killed at its writes: the next one goes on to the same bits, and what was acknowledged counts."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.source_tree import ROOT
from tests.trainer.coordinator.bench import DEVICES, expected_states

RECOVERY_SECONDS = 5.0


def lives(folder: Path, stride: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.trainer.coordinator.killed_rounds", str(folder), str(stride)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    "stride", [23, pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=[pytest.mark.slow, pytest.mark.thorough])]
)
def test_a_coordinator_that_was_killed_goes_on_to_the_same_result(tmp_path: Path, stride: int) -> None:
    found = lives(tmp_path, stride)
    undisturbed = hashlib.sha256(expected_states(2)[1]).hexdigest()
    worst = 0.0
    for life in found:
        assert life["killed"], life
        assert life["code"] == 0, life
        assert life["digest"] == undisturbed, life
        assert life["counted"] == {"7": sorted(DEVICES), "8": sorted(DEVICES)}, life
        assert all(line.endswith("accepted") for line in life["told"]), life
        worst = max(worst, life["seconds"])
        assert not [name for name in life["files"] if "/." in name], life
    assert worst < RECOVERY_SECONDS
    totals = {life["where"]: life["of"] for life in found}
    sys.stderr.write(f"killed {len(found)} times at writes of {sum(totals.values())}, slowest recovery {worst:.2f} s\n")
    assert totals.keys() == {"sqlite", "disk"}
