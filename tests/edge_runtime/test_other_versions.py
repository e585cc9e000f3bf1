"""The device's tests again: with other versions of numpy and ONNX Runtime, installed side by side, and on one core."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

pytestmark = pytest.mark.slow

FILES = (
    "adaptive",
    "baking",
    "classifier",
    "distribution_signature",
    "drift",
    "label_shift",
    "prototype_classifier",
    "prototypes",
    "samples",
    "sessions",
    "sources",
    "support",
)


def run_device_tests(*before: str, path: Path | None = None) -> str:
    """Run the device's tests in a process of their own and return what they print."""
    places = [str(place) for place in (path, ROOT) if place is not None]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
    files = [f"tests/edge_runtime/test_{name}.py" for name in FILES]
    command = [*before, sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.network
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="numpy 1.26 has no wheel for this Python")
@pytest.mark.parametrize("onnxruntime", ["onnxruntime", "onnxruntime==1.19.2"])
def test_on_numpy_one(tmp_path: Path, onnxruntime: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(tmp_path)]
    subprocess.run([*command, "numpy==1.26.4", onnxruntime], check=True)
    code = "import numpy, onnxruntime; print(numpy.__version__, onnxruntime.__version__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert found[0] == "1.26.4"
    assert "==" not in onnxruntime or found[1] == "1.19.2"
    assert "passed" in run_device_tests(path=tmp_path)


@pytest.mark.skipif(shutil.which("taskset") is None, reason="taskset is not installed")
def test_on_one_core() -> None:
    core = str(min(os.sched_getaffinity(0)))
    code = "from edge_runtime.session_settings import usable_cores; print(usable_cores())"
    command = ["taskset", "-c", core, sys.executable, "-c", code]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == "1"
    assert "passed" in run_device_tests("taskset", "-c", core)
