"""From an empty process to the first label, as a program on a device lives it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import Bundle
from tests.edge_runtime.tiny import raw_samples
from tests.source_tree import ROOT

ABSENT = {"torch", "onnx", "onnxscript", "sympy", "paho", "amqtt", "PIL", "click", "asyncio"}
PROGRAM = """
import json, re, sys
from pathlib import Path
import numpy as np
from edge_runtime import Bundle
bundle = Bundle.open(sys.argv[1], trusted=sys.argv[2])
samples = np.load(sys.argv[3])
labels = bundle.personalize(samples).predict(samples[:3])
kilobytes = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
print(json.dumps({"labels": labels.tolist(), "modules": list(sys.modules), "megabytes": kilobytes / 1024}))
"""


def test_a_device_has_its_first_label_in_time_and_stays_small(bundle: Bundle, trusted_file: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "support.npy", raw_samples(256))
    command = [sys.executable, "-c", PROGRAM, str(bundle.path), str(trusted_file), str(tmp_path / "support.npy")]
    seconds, output = [], ""
    for _ in range(3):  # the machine may be busy with other things; the best of three says what the program needs
        started = time.perf_counter()
        output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        seconds.append(time.perf_counter() - started)
    found = json.loads(output)
    assert found["labels"] == bundle.personalize(raw_samples(256)).predict(raw_samples(256)[:3]).tolist()
    assert set(found["modules"]) & ABSENT == set()
    assert min(seconds) < 1.5
    assert found["megabytes"] < 100


def test_the_numpy_modules_work_without_the_runtime() -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None; from edge_runtime import Prototypes, class_statistics; import edge_runtime.sampling"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_unknown_names_are_no_attributes() -> None:
    with pytest.raises(ImportError):
        from edge_runtime import Nonsense  # noqa: F401  # the import must fail
