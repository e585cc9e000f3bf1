"""Graphs in half precision and in eight bits against float32: bytes, time of one sample and of a batch, error.

    python benchmarks/precision.py

The forms of one graph run in turn on one thread; medians. ``--json`` for machines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edge_runtime.sessions import open_session
from export.graphs import to_onnx
from export.precision.eight_bit import to_eight_bits
from export.precision.half import to_half
from trainer.methods.parts import Part, PartTensor
from trainer.models.mlp import Normalise
from trainer.models.registry import build_model

WORKS = {
    "LeNet-S 28 x 28": ("lenet-s", (28, 28)),
    "LeNet 28 x 28": ("lenet", (28, 28)),
    "LeNet 64 x 64": ("lenet", (64, 64)),
    "CNN 28 x 28": ("cnn", (28, 28)),
}
BATCHES = (1, 32)
CALIBRATION = 128


def measure(name: str, repeats: int) -> list[dict[str, object]]:
    """Return one row for each form and batch size."""
    model, shape = WORKS[name]
    torch.manual_seed(0)
    network = nn.Sequential(Normalise(0.0, 255.0), build_model(model, shape, 10)).float()
    inputs, outputs = PartTensor("samples", "uint8", ("batch", *shape), "", 0, 255), PartTensor("logits", "float32", ("batch", 10), "")
    plain = to_onnx(Part("classify", network, (inputs,), (outputs,)))
    samples = np.random.default_rng(0).integers(0, 256, (CALIBRATION, *shape)).astype(np.uint8)
    graphs = {"fp32": plain, "fp16": to_half(plain), "int8": to_eight_bits(plain, {"samples": samples}) or plain}
    sessions = {form: open_session(graph, "1.19") for form, graph in graphs.items()}
    logits = {form: session.run({"samples": samples})[0] for form, session in sessions.items()}
    rows: list[dict[str, object]] = []
    for batch in BATCHES:
        seconds: dict[str, list[float]] = {form: [] for form in graphs}
        for _ in range(repeats):
            for form, session in sessions.items():
                began = time.perf_counter()
                session.run({"samples": samples[:batch]})
                seconds[form].append(time.perf_counter() - began)
        medians = {form: statistics.median(each) for form, each in seconds.items()}
        for form, graph in graphs.items():
            error = float(np.abs(logits[form] - logits["fp32"]).max() / np.abs(logits["fp32"]).max())
            row = {"work": name, "batch": batch, "form": form, "bytes": len(graph), "bytes_ratio": len(graph) / len(plain)}
            rows.append({**row, "seconds": medians[form], "ratio": medians[form] / medians["fp32"], "error": error})
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [row for name in WORKS for row in measure(name, arguments.repeats)]
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'graph':<18}{'batch':>6}{'form':>6}{'bytes':>10}{'':>7}{'ms':>9}{'':>7}{'error':>9}")
    for row in rows:
        figures = {key: float(str(row[key])) for key in ("bytes_ratio", "seconds", "ratio", "error")}
        print(
            f"{row['work']:<18}{row['batch']:>6}{row['form']:>6}{row['bytes']:>10}{figures['bytes_ratio']:>6.2f}x"
            f"{1e3 * figures['seconds']:>9.3f}{figures['ratio']:>6.2f}x{figures['error']:>9.1%}"
        )


if __name__ == "__main__":
    main()
