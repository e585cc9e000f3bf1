"""The same run, key and options give the same bundle, byte for byte: in another process, at another time, with other threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from protocol.bundle import open_bundle
from protocol.trust import open_trusted
from tests.releases import Release
from tests.source_tree import ROOT

# Names in sets come in another order with each hash seed; the clock of the second process stands a year later.
EXPORT = """
import sys, time
real = time.time
time.time = lambda: real() + float(sys.argv.pop(1))
import torch
torch.set_num_threads(int(sys.argv.pop(1)))
from fedtailor import main
main()
"""


def export(release: Release, out: Path, shift: float, threads: int) -> dict[str, bytes]:
    """Export in a process of its own and return the bundle's files."""
    command = ["export", str(release.run.path), "--sign", str(release.root / "release.key"), "--out", str(out), "--name", "digits"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(threads), "OMP_NUM_THREADS": str(threads)}
    words = [sys.executable, "-c", EXPORT, str(shift), str(threads), *command]
    result = subprocess.run(words, cwd=out.parent, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_two_processes_write_the_same_bundle(release: Release, tmp_path: Path) -> None:
    first = export(release, tmp_path / "one", 0.0, 1)
    second = export(release, tmp_path / "two", 365 * 86_400.0, 2)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    opened = open_bundle(tmp_path / "two", open_trusted(release.trusted))
    assert opened.manifest.created == release.run.evaluation()["ended"]
