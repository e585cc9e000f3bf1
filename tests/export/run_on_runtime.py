"""Run exported graphs on whatever ONNX Runtime the path leads to: a child process of the compatibility tests.

Arguments: a folder with ``<case>.onnx``, ``<case>.npz`` (one array per input and feed: ``<feed>/<input>``) and, where there is
one, ``<case>.onnx_adapter``; and the file to write to. Only numpy and ONNX Runtime are used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def run_case(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield ``<case>/<feed>/<place of the output>`` and the output for all feeds of a case."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    feeds: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path.with_suffix(".npz")) as arrays:
        for key, array in arrays.items():
            feed, _, name = key.partition("/")
            feeds.setdefault(feed, {})[name] = array
    for feed, inputs in feeds.items():
        for place, output in enumerate(session.run(None, inputs)):
            yield f"{path.stem}/{feed}/{place}", output
    adapter = path.with_suffix(".onnx_adapter")
    if adapter.exists() and hasattr(onnxruntime, "LoraAdapter"):
        loaded, run_options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
        loaded.Load(str(adapter))
        run_options.add_active_adapter(loaded)
        yield f"{path.stem}/adapter/0", session.run(None, feeds["base"], run_options)[0]


if __name__ == "__main__":
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    results: dict[str, Any] = {key: output for path in sorted(folder.glob("*.onnx")) for key, output in run_case(path)}
    np.savez(target, **results)
    sys.stdout.write(onnxruntime.__version__)
