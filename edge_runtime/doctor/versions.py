"""Which opset and IR version each ONNX Runtime loads: measured by loading one-node models into each release."""

from __future__ import annotations

from edge_runtime.doctor.findings import Finding, passed
from protocol.manifest import Manifest

# (minor version of 1.x from which it holds, highest opset, highest IR version)
LOADS = ((16, 19, 9), (17, 20, 9), (18, 21, 10), (21, 22, 10), (23, 23, 11), (24, 25, 13), (25, 26, 13), (32, 28, 14))


def check_versions(manifest: Manifest, runtime: str | None) -> Finding:
    """Compare what the graphs are written in with what a runtime reads."""
    opset = max(graph.opset for graph in manifest.graphs.values())
    ir = max(graph.ir_version for graph in manifest.graphs.values())
    needs = f"opset {opset}, IR {ir}, ONNX Runtime {manifest.minimum_onnxruntime} or newer"
    if runtime is None:
        return Finding("graph format", "skipped", f"the bundle needs {needs}")
    numbers = _numbers(runtime)
    loads = [entry for entry in LOADS if (1, entry[0]) <= numbers]
    if numbers < _numbers(manifest.minimum_onnxruntime) or not loads or opset > loads[-1][1] or ir > loads[-1][2]:
        advice = f'pip install "onnxruntime>={manifest.minimum_onnxruntime}", or export the bundle for an older one'
        return Finding("graph format", "failed", f"ONNX Runtime {runtime} does not load this: {needs}", advice)
    return passed("graph format", f"{needs}; {runtime} is here")


def _numbers(version: str) -> tuple[int, int]:
    """Return major and minor version."""
    major, minor, *_ = [*version.split("."), "0"]
    digits = "".join(character for character in minor if character.isdigit())
    return int(major), int(digits or 0)
