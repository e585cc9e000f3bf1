from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edge_runtime import Bundle
from tests.source_tree import ROOT

MEGABYTES = 8


def growth(bundle: Path, trusted: Path, predictions: int, batch_sizes: int, swaps: int) -> float:
    """Return by how many megabytes a process grew over a long life."""
    numbers = [str(number) for number in (predictions, batch_sizes, swaps)]
    command = [sys.executable, "-m", "tests.edge_runtime.soak", str(bundle), str(trusted), *numbers]
    before, after = map(float, subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    return after - before


def test_memory_does_not_grow_with_batch_sizes_and_swaps(bundle: Bundle, trusted_file: Path) -> None:
    assert growth(bundle.path, trusted_file, 500, 200, 10) <= MEGABYTES


@pytest.mark.slow
def test_memory_does_not_grow_over_a_long_life(bundle: Bundle, trusted_file: Path) -> None:
    assert growth(bundle.path, trusted_file, 5000, 200, 50) <= MEGABYTES
