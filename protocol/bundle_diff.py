"""What changed between two bundles, and which operators one needs."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from protocol.bundle import VerifiedBundle
from protocol.initializers import read_initializers
from protocol.manifest import Manifest
from protocol.schema import JsonValue, encode

ABSENT = "absent"
FROM_FILES = ("files", "graphs")  # compared by content below


@dataclass(frozen=True)
class Change:
    """One thing that differs: its place, and what there is in the first and in the second bundle."""

    where: str
    before: str
    after: str


def compare_bundles(first: VerifiedBundle, second: VerifiedBundle) -> list[Change]:
    """Return all differences: fields of the manifest, files by digest, weights by their largest difference."""
    fields = ({name: value for name, value in encode(each.manifest).items() if name not in FROM_FILES} for each in (first, second))
    changes = [*_fields("", *fields), *_fields("signers", list(first.signers), list(second.signers))]
    for path in sorted({*first.files, *second.files}):
        before, after = first.files.get(path), second.files.get(path)
        if before == after:
            continue
        changes.append(Change(path, _content(before), _content(after)))
        if before is not None and after is not None and path.endswith(".onnx"):
            changes += _weights(path, before, after)
    return changes


def operator_configuration(manifest: Manifest) -> str:
    """Return the operators of all graphs in the format of ONNX Runtime's reduced build, one line an opset: ``ai.onnx;18;Add,Conv``."""
    needed: dict[int, set[str]] = {}
    for graph in manifest.graphs.values():
        needed.setdefault(graph.opset, set()).update(graph.operators)
    return "".join(f"ai.onnx;{opset};{','.join(sorted(names))}\n" for opset, names in sorted(needed.items()))


def _fields(where: str, before: JsonValue, after: JsonValue) -> Iterator[Change]:
    """Yield the differences of two JSON values, down to the smallest that differ."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in sorted({*before, *after}):
            yield from _fields(f"{where}.{name}".lstrip("."), before.get(name, ABSENT), after.get(name, ABSENT))
    elif before != after:
        yield Change(where, str(before)[:80], str(after)[:80])


def _content(data: bytes | None) -> str:
    """Return how a file is told apart."""
    return ABSENT if data is None else f"{len(data)} bytes, {hashlib.sha256(data).hexdigest()[:12]}"


def _weights(path: str, before: bytes, after: bytes) -> Iterator[Change]:
    """Yield constants of a graph that differ, with their largest difference where shapes agree."""
    old, new = read_initializers(before), read_initializers(after)
    for name in sorted({*old, *new}):
        first, second = old.get(name), new.get(name)
        if first is None or second is None or first.shape != second.shape or first.dtype != second.dtype:
            yield Change(f"{path}:{name}", *(ABSENT if each is None else f"{each.dtype} {list(each.shape)}" for each in (first, second)))
        elif not np.array_equal(first, second):
            difference = float(np.abs(first.astype(np.float64) - second.astype(np.float64)).max())
            size = float(np.abs(first).max())
            share = f", {difference / size:.1%} of the largest" if size and math.isfinite(difference) else ""
            yield Change(f"{path}:{name}", f"{first.dtype} {list(first.shape)}", f"differs by at most {difference:.3g}{share}")
