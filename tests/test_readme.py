"""Every command and every snippet of the README runs as printed, in order, in one empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
MAKE = re.compile(r"make \w[\w-]*")


def environment() -> dict[str, str]:
    """Return an environment with this interpreter's commands on the path, and the sources importable."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"


def test_the_readme_has_what_this_file_tests() -> None:
    kinds = [kind for kind, _ in BLOCKS]
    assert kinds.count("console") >= 3
    assert kinds.count("python") >= 2


@pytest.mark.slow
def test_every_snippet_runs_in_order(tmp_path: Path) -> None:
    for kind, text in BLOCKS:
        if kind == "python":
            run([sys.executable, "-c", text], tmp_path)
            continue
        assert kind == "console", f"a block of kind {kind} is not tested"
        for line in filter(None, text.splitlines()):
            if not MAKE.fullmatch(line):
                run(["bash", "-euc", line], tmp_path)


@pytest.mark.slow
def test_make_demo_runs_as_printed() -> None:
    assert "make demo" in README
    run(["make", "demo"], ROOT)


@pytest.mark.slow
def test_make_test_runs_as_printed_on_a_few_tests() -> None:
    """All of them would run this one again; a few show that the command finds its environment and its tests."""
    assert "make test\n" in README
    run(["make", "test", "TESTS=tests/edge_runtime/test_sampling.py"], ROOT)


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for document in [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
