"""The same run, key and options give the same bundle, byte for byte: in another process, at another time, with other threads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.bundle import open_bundle
from protocol.trust import open_trusted
from tests.releases import Release
from tests.source_tree import ROOT


def export(release: Release, out: Path, threads: int) -> dict[str, bytes]:
    """Export in a process of its own, with its own hash seed, and return the bundle's files."""
    words = ["export", str(release.run.path), "--sign", str(release.root / "release.key"), "--out", str(out), "--name", "digits"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(threads), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "fedtailor", *words]
    result = subprocess.run(command, cwd=out.parent, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_two_processes_write_the_same_bundle(release: Release, tmp_path: Path) -> None:
    first = export(release, tmp_path / "one", 1)
    second = export(release, tmp_path / "two", 2)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    opened = open_bundle(tmp_path / "two", open_trusted(release.trusted))
    assert opened.manifest.created == release.run.ended()
