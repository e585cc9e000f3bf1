"""What the device's code costs before it does anything: libraries and resident memory, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.edge_runtime.tiny import graphs

MAXIMUM_RESIDENT = 80  # MB, with one small session
CODE = """
import sys
import edge_runtime
from edge_runtime.sessions import open_session
session = open_session(open(sys.argv[1], "rb").read(), "1.19")
import numpy
session.run({"embedding": numpy.ones((1, 3), numpy.float32)})
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
print(*(name for name in ("torch", "onnx", "onnxscript", "sympy") if name in sys.modules))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_a_small_session_stays_below_80_megabytes(tmp_path: Path) -> None:
    (tmp_path / "graph.onnx").write_bytes(graphs("device")["generate"].to_bytes())
    command = [sys.executable, "-c", CODE, str(tmp_path / "graph.onnx")]
    resident, loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:2]
    assert loaded == ""
    assert 20 < int(resident) / 1024 < MAXIMUM_RESIDENT
