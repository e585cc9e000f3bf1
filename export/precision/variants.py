"""Variants of a bundle's graphs: made, measured on the way that devices go, and refused where they cost too much accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from edge_runtime import Bundle
from edge_runtime.sessions import open_session
from export.precision.eight_bit import is_convolutional, to_eight_bits
from export.precision.half import to_half
from export.precision.timing import Stopwatch
from protocol.bundle import write_bundle
from protocol.errors import InputError
from protocol.keys import PrivateKey
from protocol.manifest import FLOAT32, GraphSpec, Manifest, Variant
from protocol.onnx_graph import inspect_graph
from trainer.validation import MadeUpDevice

Array = NDArray[np.generic]


@dataclass(frozen=True)
class VariantRequest:
    """Which variants are wanted.

    Attributes:
        precisions: Of ``fp16`` and ``int8``.
        max_drop: Points of accuracy that a variant may lose.
    """

    precisions: tuple[str, ...]
    max_drop: float = 1.0


@dataclass(frozen=True)
class Verdict:
    """What became of one variant: ``kept``, or why not, for people; the measurement is None where nothing could be made."""

    entry_point: str
    precision: str
    kept: bool
    reason: str
    variant: Variant | None
    length: int


def describe(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a table of what became of each variant."""
    lines = [f"{'variant':<18}{'bytes':>10}  {'accuracy':>8}  {'fp32':>6}  {'time':>6}  verdict"]
    for each in verdicts:
        own = each.variant
        figures = "" if own is None else f"{own.accuracy:>8.1%}  {own.accuracy_float32:>6.1%}  {own.seconds / own.seconds_float32:>5.2f}x"
        lines.append(f"{each.entry_point + ' ' + each.precision:<18}{each.length:>10,}  {figures:<24}  {each.reason}")
    return lines


@dataclass(frozen=True, eq=False)
class Evidence:
    """What variants are calibrated and judged on; none of it enters the bundle.

    Attributes:
        calibration: Raw training samples of participants, (N, *shape).
        devices: Devices made up from what participants held out.
    """

    calibration: Array
    devices: Sequence[MadeUpDevice]


def add_variants(
    manifest: Manifest, files: dict[str, bytes], request: VariantRequest, evidence: Evidence, stopwatch: Stopwatch
) -> tuple[Manifest, list[Verdict]]:
    """Return the manifest with the variants that hold, whose files are added to ``files``, and a verdict on each.

    Args:
        manifest: Of the bundle in float32.
        files: Its files by path.
        request: What is wanted.
        evidence: Samples to calibrate and to judge on.
        stopwatch: Measures seconds, or remembers them.

    Raises:
        InputError: There is nothing to judge on.
    """
    if not evidence.devices:
        hint = "train with split.validation_share above 0"
        raise InputError("variants cannot be judged", expected="samples that participants held out", got="none", hint=hint)
    trial = _Trial(manifest, dict(files), request, evidence, stopwatch, _accuracy(manifest, files, FLOAT32, evidence))
    verdicts: list[Verdict] = []
    graphs = dict(manifest.graphs)
    for entry_point in sorted(graphs):
        for precision in request.precisions:
            verdict, data = trial.judge(entry_point, precision)
            verdicts.append(verdict)
            if verdict.kept and verdict.variant is not None:
                files[verdict.variant.file] = data
                graphs[entry_point] = replace(graphs[entry_point], variants={**graphs[entry_point].variants, precision: verdict.variant})
    return replace(manifest, graphs=graphs), verdicts


@dataclass(frozen=True, eq=False)
class _Trial:
    """A bundle in float32, its accuracy, and what variants of it are tried with."""

    manifest: Manifest
    files: Mapping[str, bytes]
    request: VariantRequest
    evidence: Evidence
    stopwatch: Stopwatch
    accuracy: float

    def judge(self, entry_point: str, precision: str) -> tuple[Verdict, bytes]:
        """Return what becomes of one variant, and its bytes."""
        spec = self.manifest.graphs[entry_point]
        data = _make(spec, self.files[spec.file], precision, self.evidence)
        if data is None:
            return Verdict(entry_point, precision, False, "its weights are inputs: there is nothing to make smaller", None, 0), b""
        variant = self.measure(entry_point, precision, data)
        drop, limit = 100 * (self.accuracy - variant.accuracy), self.request.max_drop
        reason = "kept"
        if drop > limit:
            reason = f"loses {drop:.2f} points, more than {limit:g}"
        elif len(data) >= len(self.files[spec.file]):
            reason = "is not smaller"
        return Verdict(entry_point, precision, reason == "kept", reason, variant, len(data)), data

    def measure(self, entry_point: str, precision: str, data: bytes) -> Variant:
        """Return what the manifest says of a variant."""
        spec, runtime = self.manifest.graphs[entry_point], self.manifest.minimum_onnxruntime
        facts, plain = inspect_graph(data), self.files[spec.file]
        feeds = _example_feeds(spec, self.evidence)
        seconds, before = self.stopwatch.compare(data, plain, feeds, runtime)
        variant = Variant(
            file=spec.file.replace(".onnx", f".{precision}.onnx"),
            opset=facts.opsets[""],
            ir_version=facts.ir_version,
            operators=tuple(sorted(facts.operators)),
            minimum_onnxruntime=runtime,
            accuracy=0.0,
            accuracy_float32=self.accuracy,
            seconds=seconds,
            seconds_float32=before,
            worst_absolute_difference=_difference(data, plain, feeds, runtime),
        )
        tried = replace(self.manifest, graphs={**self.manifest.graphs, entry_point: replace(spec, variants={precision: variant})})
        return replace(variant, accuracy=_accuracy(tried, {**self.files, variant.file: data}, precision, self.evidence))


def _make(spec: GraphSpec, graph: bytes, precision: str, evidence: Evidence) -> bytes | None:
    """Return the variant's bytes, or None where the graph has no constants worth making smaller."""
    if any(each.name.startswith("weight.") for each in spec.inputs):
        return None
    if precision == "fp16":
        return to_half(graph)
    names = [each.name for each in spec.inputs]
    if is_convolutional(graph) and names != ["samples"]:
        return None
    return to_eight_bits(graph, {"samples": evidence.calibration})


def _example_feeds(spec: GraphSpec, evidence: Evidence) -> dict[str, Array]:
    """Return calibration samples for a graph that reads samples, and numbers around zero for one that reads features."""
    generator = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for each in spec.inputs:
        if each.name == "samples":
            feeds[each.name] = evidence.calibration
        else:
            shape = [len(evidence.calibration) if isinstance(size, str) else size for size in each.shape]
            feeds[each.name] = generator.standard_normal(shape).astype(each.dtype)
    return feeds


def _difference(graph: bytes, reference: bytes, feeds: Mapping[str, Array], runtime: str) -> float:
    """Return the largest difference of an output between two graphs."""
    both = [open_session(each, runtime).run(feeds) for each in (graph, reference)]
    return max(float(np.abs(own - theirs).max(initial=0.0)) for own, theirs in zip(*both, strict=True))


def _accuracy(manifest: Manifest, files: Mapping[str, bytes], precision: str, evidence: Evidence) -> float:
    """Return the mean accuracy of the made-up devices, each personalised and scored through a bundle as devices do it."""
    key = PrivateKey.generate()
    with TemporaryDirectory() as folder:
        write_bundle(Path(folder) / "bundle", manifest, files, key)
        bundle = Bundle.open(Path(folder) / "bundle", key.public, precision)
        scores = [_score(bundle, device) for device in evidence.devices]
    return float(np.mean(scores))


def _score(bundle: Bundle, device: MadeUpDevice) -> float:
    """Return the share of a device's queries that its own classifier labels rightly."""
    names = np.array(bundle.manifest.classes)
    predicted = np.array(bundle.personalize(device.support).predict(device.query))
    return float(np.mean(predicted == names[device.query_labels]))
