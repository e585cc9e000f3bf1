"""A bundle on one page, for people; what a bundle says of itself is shown as text and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator

from protocol.bundle import VerifiedBundle
from protocol.console import plain
from protocol.manifest import Manifest

MOST_CLASSES_SHOWN = 20
COLUMNS = "{:<22}{:>12}{:>11}  {:<20}{}"


def describe_bundle(opened: VerifiedBundle) -> list[str]:
    """Return the lines of the page."""
    lines = [f"{name:<16}{plain(text)}" for name, text in _facts(opened)]
    head = COLUMNS.format("graph", "bytes", "operators", "largest difference", "allowed, or right answers").rstrip()
    return [*lines, "", head, *(COLUMNS.format(*map(plain, row)).rstrip() for row in _graphs(opened.manifest))]


def date(seconds: int) -> str:
    """Return a time, in seconds since 1970, as a person writes it; a year beyond the calendar as its number."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds} s after 1970"


def _facts(opened: VerifiedBundle) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of the whole bundle."""
    manifest, raw, data, way = opened.manifest, opened.manifest.raw_input, opened.manifest.data, opened.manifest.personalization
    yield "name", f"{manifest.name}, version {manifest.bundle_version}"
    yield "digest", opened.digest
    yield "signed by", opened.signer
    yield "made", date(manifest.created)
    yield "expires", "never" if manifest.expires is None else date(manifest.expires)
    yield "method", f"{manifest.method.name}, {len(manifest.method.settings)} settings, {len(manifest.method.phases)} phases"
    if data is not None:
        trained = f"{data.participants} participants with {data.training_samples:,} samples"
        yield "data", f"{data.name}: {trained}, scored on {data.new_devices} new devices, {data.partition}"
    names, more = ", ".join(manifest.classes[:MOST_CLASSES_SHOWN]), len(manifest.classes) - MOST_CLASSES_SHOWN
    yield "classes", f"{len(manifest.classes)}: {names}" + (f" and {more} more" if more > 0 else "")
    yield "raw sample", f"{raw.dtype} {list(raw.shape)}, {raw.minimum:g} to {raw.maximum:g}"
    if way is not None:
        yield "personalise", f"{way.tailored} classifier for each {way.scope}, from about {way.support_size} unlabelled samples"
    yield "ONNX Runtime", f"{manifest.minimum_onnxruntime} or newer, target {manifest.target}"
    yield "size", f"{sum(map(len, opened.files.values())):,} bytes in {len(opened.files)} files"


def _graphs(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    """Yield one row for each graph and each variant of it."""
    for name, graph in sorted(manifest.graphs.items()):
        parity = graph.parity
        allowed = f"{parity.absolute_tolerance:g} + {parity.relative_tolerance:g} of the value"
        size = f"{manifest.files[graph.file].length:,}"
        yield name, size, str(len(graph.operators)), f"{parity.worst_absolute_difference:.1e}", allowed
        for precision, each in sorted(graph.variants.items()):
            right = f"{each.accuracy:.1%} against {each.accuracy_float32:.1%}, {each.seconds / each.seconds_float32:.2f}x the time"
            size = f"{manifest.files[each.file].length:,}"
            yield f"  {precision}", size, str(len(each.operators)), f"{each.worst_absolute_difference:.1e}", right
