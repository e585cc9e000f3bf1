"""Does a bundle compute here what it computed where it was made? Golden inputs and outputs travel in it.

``answer`` runs in a child process (see ``edge_runtime.child``); ``check_selftest`` starts one and judges how it ended.
"""

from __future__ import annotations

import hashlib
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_runtime.child import ChildOutcome, Limits, at_stage, run_child
from protocol.bundle import MANIFEST_NAME, read_listed
from protocol.errors import BundleFileError, FedtailorError, IncompatibleVersionError, MissingExtraError, SelfTestError
from protocol.files import read_limited
from protocol.golden import GOLDEN_NAME, LOGITS, SAMPLES
from protocol.manifest import MAXIMUM_MANIFEST_BYTES, Manifest

if TYPE_CHECKING:  # the parent needs no numpy: what it starts may be what is broken
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]

Run = Callable[[Mapping[str, Any]], list[Any]]
ENTRY_OF_GOLDEN = {"features": "features", "embedding": "embed", LOGITS: "classify"}
BUNDLE_COPIES = 8  # a session holds weights, packed weights and the bytes they came from, while others are still open


@dataclass(frozen=True)
class SelfTestReport:
    """What a passed self-test found.

    Attributes:
        worst_difference: Largest absolute difference from a golden output.
        differences: The same for each golden output.
        load_seconds: Time to load all graphs.
        run_seconds: Time to run the golden samples through them.
        peak_bytes: Largest resident memory of the process that did it.
        runtime: Version of ONNX Runtime.
    """

    worst_difference: float
    differences: Mapping[str, float]
    load_seconds: float
    run_seconds: float
    peak_bytes: int
    runtime: str


def check_selftest(folder: Path, digest: str, limits: Limits) -> SelfTestReport:
    """Run a bundle's self-test in a process with limits.

    Args:
        folder: A bundle that was verified.
        digest: Its digest; what lies in the folder must still be that bundle.
        limits: What the process may use; memory for the bundle itself is added.

    Raises:
        SelfTestError: The bundle is at fault: other results, not finite, refused by the runtime, out of bounds.
        IncompatibleVersionError: The device is at fault: the runtime is missing, too old, or does not run on this processor.
        BundleFileError: The bundle brings no golden samples, or was altered meanwhile.
    """
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    generous = replace(limits, memory_bytes=limits.memory_bytes + BUNDLE_COPIES * size)
    outcome = run_child(__name__, {"folder": str(folder.absolute()), "digest": digest}, generous)
    if outcome.content is None:
        raise _judge(outcome, generous)
    return SelfTestReport(**outcome.content)


def _judge(outcome: ChildOutcome, limits: Limits) -> FedtailorError:
    """Return the error that tells why a self-test gave no answer, and whose fault it is."""
    if outcome.timed_out:
        return IncompatibleVersionError(
            "the self-test took too long", expected=f"at most {limits.wall_seconds:g} s", hint="is the device busy? try again"
        )
    if outcome.error is not None:
        kinds: dict[str, type[FedtailorError]] = {
            "SelfTestError": SelfTestError,
            "BundleError": SelfTestError,  # ONNX Runtime refuses a graph
            "MemoryError": SelfTestError,
            "NumericalError": SelfTestError,
            "BundleFileError": BundleFileError,
            "MissingExtraError": MissingExtraError,
        }
        return kinds.get(outcome.error["class"], IncompatibleVersionError)(outcome.error["sentence"])
    if outcome.stage != "graphs":  # it had not come as far as the bundle
        how = outcome.signal or (outcome.output.splitlines() or ["no word"])[-1]
        hint = "fedtailor edge doctor says what to do"
        return IncompatibleVersionError("ONNX Runtime cannot be loaded on this device", got=how, hint=hint)
    if outcome.signal == "SIGKILL":  # nothing in a bundle sends it; a system short of memory does
        return IncompatibleVersionError("the self-test was killed", got=outcome.signal, hint="is there enough memory? try again")
    if outcome.signal == "SIGXCPU":
        expected = f"at most {limits.cpu_seconds} s of processor time"
        return SelfTestError("the self-test was stopped by a limit", expected=expected, got=outcome.signal)
    got = outcome.signal or (outcome.output.splitlines() or ["no word"])[-1]
    return SelfTestError("the self-test crashed", expected="the golden outputs", got=got)


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load every graph of a bundle, run the golden samples, and return the fields of a ``SelfTestReport``."""
    at_stage("runtime")
    from edge_runtime.sessions import open_session, runtime_version

    at_stage("graphs")
    manifest, files = _read_bundle(Path(request["folder"]), request["digest"])
    started = time.perf_counter()
    sessions = {name: open_session(files[graph.file], manifest.minimum_onnxruntime) for name, graph in manifest.graphs.items()}
    loaded = time.perf_counter()
    differences = dict(_differences(manifest, {name: session.run for name, session in sessions.items()}, _golden(files)))
    return {
        "worst_difference": max(differences.values()),
        "differences": differences,
        "load_seconds": round(loaded - started, 4),
        "run_seconds": round(time.perf_counter() - loaded, 4),
        "peak_bytes": _peak_bytes(),
        "runtime": runtime_version(),
    }


def _peak_bytes() -> int:
    """Return the largest resident memory of this process; what its parent held when it forked, which getrusage counts, is not in it."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # no Linux, or a kernel that hides it
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _read_bundle(folder: Path, digest: str) -> tuple[Manifest, dict[str, bytes]]:
    """Return manifest and files of the bundle that the parent verified: the digest vouches for the manifest, it for the files."""
    data = read_limited(folder / MANIFEST_NAME, MAXIMUM_MANIFEST_BYTES, BundleFileError)
    if hashlib.sha256(data).hexdigest() != digest:
        raise BundleFileError(f"{folder} was altered", expected=f"digest {digest[:16]}", hint="fetch the bundle again")
    manifest = Manifest.from_bytes(data)
    return manifest, {path: read_listed(folder, path, entry) for path, entry in manifest.files.items()}


def _golden(files: Mapping[str, bytes]) -> dict[str, Array]:
    """Return the golden tensors.

    Raises:
        BundleFileError: There are none.
    """
    from protocol.tensors import decode_tensors

    golden = decode_tensors(files[GOLDEN_NAME], error=BundleFileError) if GOLDEN_NAME in files else {}
    if not {SAMPLES, LOGITS} <= golden.keys():
        raise BundleFileError(
            "the bundle brings no golden samples", expected=f"{SAMPLES} and {LOGITS} in {GOLDEN_NAME}", hint="export it again"
        )
    return golden


def _differences(manifest: Manifest, runs: Mapping[str, Run], golden: Mapping[str, Array]) -> Iterator[tuple[str, float]]:
    """Yield each golden output's name and the largest absolute difference from it.

    Raises:
        SelfTestError: A difference beyond the tolerance of the parity gate, which the signature covers.
    """
    feeds = {SAMPLES: golden[SAMPLES]}
    for name in ("features", "embedding"):
        if name in golden:
            yield name, _compare(manifest, name, runs[ENTRY_OF_GOLDEN[name]](feeds)[0], golden[name])
    way = manifest.personalization
    if way is not None and "embedding" in golden:
        embedding: Any = golden["embedding"]  # (N, E)
        per_device = way.scope == "device"
        written = runs["generate"]({"embedding": embedding.mean(axis=0, keepdims=True) if per_device else embedding})
        names = [output.name for output in manifest.graphs["generate"].outputs]
        feeds |= {name: tensor[0] if per_device else tensor for name, tensor in zip(names, written, strict=True)}
    yield LOGITS, _compare(manifest, LOGITS, runs["classify"](feeds)[0], golden[LOGITS])


def _compare(manifest: Manifest, name: str, found: Array, golden: Any) -> float:
    """Return the largest absolute difference, if it is within tolerance."""
    import numpy as np

    parity = manifest.graphs[ENTRY_OF_GOLDEN[name]].parity
    if found.shape != golden.shape or not np.isfinite(found).all():
        what = f"shape {found.shape}" if found.shape != golden.shape else "NaN or infinity"
        raise SelfTestError(f"the bundle computes no usable {name} on this device", expected=f"finite numbers {golden.shape}", got=what)
    gap = np.abs(found.astype(np.float64) - golden)
    allowed = parity.absolute_tolerance + parity.relative_tolerance * np.abs(golden).max()
    worst = float(gap.max())
    if worst > allowed:
        raise SelfTestError(
            f"the bundle computes other {name} on this device", expected=f"a difference of at most {allowed:.2g}", got=f"{worst:.2g}"
        )
    return worst
