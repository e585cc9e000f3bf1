"""Variants of a bundle's graphs: made, measured on the way that devices go, and refused where they cost too much accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from edge_runtime.sessions import open_session
from export.precision.device_way import FEATURES, Exchanged, accuracy, open_with
from export.precision.eight_bit import is_convolutional, to_eight_bits
from export.precision.half import to_half
from export.precision.timing import Stopwatch
from protocol.errors import InputError
from protocol.manifest import FLOAT32, GraphSpec, Manifest, Variant
from protocol.onnx_graph import inspect_graph
from protocol.schema import JsonValue, encode
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
    """What became of one variant: ``kept``, or why not, for people; ``made`` is None where nothing could be made."""

    entry_point: str
    precision: str
    kept: bool
    reason: str
    made: Exchanged | None

    @property
    def variant(self) -> Variant | None:
        """Return what was measured."""
        return None if self.made is None else self.made.variant

    @property
    def length(self) -> int:
        """Return the variant's size in bytes; 0 where there is none."""
        return 0 if self.made is None else len(self.made.data)

    @property
    def drop(self) -> float:
        """Return the points of accuracy that it loses; 0 where there is none."""
        return 0.0 if self.made is None else 100 * (self.made.variant.accuracy_float32 - self.made.variant.accuracy)

    def record(self) -> dict[str, JsonValue]:
        """Return all but the bytes, for programs."""
        names = ("entry_point", "precision", "kept", "reason", "variant", "length")
        return {name: encode(getattr(self, name)) for name in names}


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
    trial = _Trial(manifest, dict(files), request, evidence, stopwatch)
    verdicts = [verdict for precision in request.precisions for verdict in trial.judge_all(precision)]
    verdicts.sort(key=lambda verdict: (verdict.entry_point, request.precisions.index(verdict.precision)))
    graphs = dict(manifest.graphs)
    for each in verdicts:
        if each.kept and each.made is not None:
            files[each.made.variant.file] = each.made.data
            graphs[each.entry_point] = replace(
                graphs[each.entry_point], variants={**graphs[each.entry_point].variants, each.precision: each.made.variant}
            )
    return replace(manifest, graphs=graphs), verdicts


@dataclass(frozen=True, eq=False)
class _Trial:
    """A bundle in float32, its accuracy, and what variants of it are tried with."""

    manifest: Manifest
    files: Mapping[str, bytes]
    request: VariantRequest
    evidence: Evidence
    stopwatch: Stopwatch
    _plain: dict[bool, float] = field(default_factory=dict)

    def judge_all(self, precision: str) -> list[Verdict]:
        """Return what becomes of one precision's variants, each judged alone and those that hold together.

        A device runs them all at once, and each may have spent what is allowed: the worst is refused until the rest hold together.
        """
        verdicts = [self.judge(entry_point, precision) for entry_point in sorted(self.manifest.graphs)]
        limit = self.request.max_drop
        while len(kept := [each for each in verdicts if each.kept and each.entry_point != FEATURES]) > 1:
            together = {each.entry_point: each.made for each in kept if each.made is not None}
            drop = 100 * (self.plain_accuracy("classify") - self.accuracy("classify", together, precision))
            if drop <= limit:
                break
            worst = max(kept, key=lambda each: each.drop)
            reason = f"{' and '.join(together)} together lose {drop:.2f} points, more than {limit:g}"
            verdicts[verdicts.index(worst)] = replace(worst, kept=False, reason=reason)
        return verdicts

    def judge(self, entry_point: str, precision: str) -> Verdict:
        """Return what becomes of one variant."""
        spec = self.manifest.graphs[entry_point]
        data = _make(spec, self.files[spec.file], precision, self.evidence)
        if data is None:
            return Verdict(entry_point, precision, False, "its weights are inputs: there is nothing to make smaller", None)
        verdict = Verdict(entry_point, precision, True, "kept", Exchanged(self.measure(entry_point, precision, data), data))
        if verdict.drop > self.request.max_drop:
            return replace(verdict, kept=False, reason=f"loses {verdict.drop:.2f} points, more than {self.request.max_drop:g}")
        if len(data) >= len(self.files[spec.file]):
            return replace(verdict, kept=False, reason="is not smaller")
        return verdict

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
            accuracy_float32=self.plain_accuracy(entry_point),
            seconds=seconds,
            seconds_float32=before,
            worst_absolute_difference=_difference(data, plain, feeds, runtime),
        )
        return replace(variant, accuracy=self.accuracy(entry_point, {entry_point: Exchanged(variant, data)}, precision))

    def plain_accuracy(self, entry_point: str) -> float:
        """Return the accuracy with everything in float32, measured once for each of the two ways."""
        way = entry_point == FEATURES
        if way not in self._plain:
            self._plain[way] = self.accuracy(entry_point, {}, FLOAT32)
        return self._plain[way]

    def accuracy(self, entry_point: str, exchanged: Mapping[str, Exchanged], precision: str) -> float:
        """Return the accuracy on the way that an entry point serves, with some graphs exchanged."""
        return accuracy(open_with(self.manifest, self.files, exchanged, precision), entry_point, self.evidence.devices)


def _make(spec: GraphSpec, graph: bytes, precision: str, evidence: Evidence) -> bytes | None:
    """Return the variant's bytes, or None where the graph has no constants worth making smaller."""
    if any(each.name.startswith(("weight.", "state.")) for each in spec.inputs):
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
