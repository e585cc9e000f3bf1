"""How long a device process takes from its start to the first label: open, verify, personalise, predict.

    python benchmarks/cold_start.py BUNDLE RELEASE.pub SUPPORT.npy [--runs 9]

Whole processes, from outside, the interpreter's start included; beside it a process that only imports numpy and
onnxruntime, which no device can go below.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

FLOOR = "import numpy, onnxruntime"
DEVICE = """
import sys
import numpy
from edge_runtime import Bundle
bundle = Bundle.open({bundle!r}, trusted={trusted!r})
samples = numpy.load({support!r})[:256]
label = bundle.personalize(samples).predict(samples[:1])[0]
assert not {{"torch", "onnx", "onnxscript"}} & set(sys.modules)
"""


def seconds(code: str) -> float:
    """Return how long a process that runs this code takes."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def main() -> None:
    """Measure both in turn and print medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("trusted")
    parser.add_argument("support")
    parser.add_argument("--runs", type=int, default=9)
    arguments = parser.parse_args()
    device = DEVICE.format(bundle=arguments.bundle, trusted=arguments.trusted, support=arguments.support)
    pairs = [(seconds(device), seconds(FLOOR)) for _ in range(arguments.runs + 1)][1:]
    ours, floor = (statistics.median(column) for column in zip(*pairs, strict=True))
    result = {"device_seconds": round(ours, 3), "floor_seconds": round(floor, 3), "ratio": round(ours / floor, 2), "runs": arguments.runs}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
