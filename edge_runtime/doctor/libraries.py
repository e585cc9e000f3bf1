"""numpy and ONNX Runtime, loaded in a child process: a processor that lacks an instruction kills only the child."""

from __future__ import annotations

import re
from dataclasses import dataclass

from edge_runtime.child import ChildOutcome, Limits, run_child
from edge_runtime.doctor.findings import Finding, passed
from edge_runtime.doctor.system import WHEELS

# Some wheels die at import on processors that earlier and later ones serve; 1.21.0 does on a Raspberry Pi 4.
KNOWN_GOOD = ("1.20.1", "1.19.2")
PROBE = Limits(memory_bytes=2 << 30, cpu_seconds=30, wall_seconds=60.0)


@dataclass(frozen=True)
class Meaning:
    """Words of an import error, what they mean, and what to do; ``{0}`` is what the first group of the pattern matched."""

    pattern: str
    sentence: str
    advice: str


MEANINGS = (
    Meaning(
        r"compiled using NumPy 1|_ARRAY_API not found|numpy\.core\.multiarray failed|dtype size changed",
        "{name} was built for another numpy than {numpy}, which is installed",
        'pip install "numpy<2", or a newer onnxruntime',
    ),
    Meaning(
        r"version [`'](GLIBC\w*_[\d.]+)' not found",
        "{name} needs a newer system library: {0}",
        "update the system, or install an older onnxruntime",
    ),
    Meaning(
        r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object",
        "{name} needs the system library {0}, which is missing",
        "install it with the system's package manager",
    ),
    Meaning(
        r"wrong ELF class|invalid ELF header|Exec format error",
        "{name} was built for another kind of processor",
        "install it again on this device",
    ),
    Meaning(r"cannot allocate memory|MemoryError", "there is not enough memory to load {name}", "end other programs, or add swap"),
    Meaning(
        r"ONNX Runtime is not installed|No module named 'onnxruntime'",
        "not installed",
        f'pip install "fedtailor[edge]"; there are wheels for {WHEELS}, none for 32-bit Arm',
    ),
    Meaning(r"No module named '([\w.]+)'", "the module {0} is missing", 'pip install "fedtailor[edge]"'),
)


@dataclass(frozen=True)
class Libraries:
    """What the child found.

    Attributes:
        findings: A line each for numpy and ONNX Runtime.
        runtime: Version of ONNX Runtime, or None if it cannot be used.
    """

    findings: tuple[Finding, ...]
    runtime: str | None


def check_libraries() -> Libraries:
    """Load numpy and ONNX Runtime in a child process and say what happened."""
    outcome = run_child("edge_runtime.doctor.probe", {}, PROBE)
    versions = outcome.content or {}
    fault = versions.get("fault") if outcome.content else _last_words(outcome)
    numpy, runtime = versions.get("numpy"), versions.get("onnxruntime")
    if fault is None:
        return Libraries((passed("numpy", str(numpy)), passed("onnxruntime", str(runtime))), runtime)
    name = "onnxruntime" if outcome.stage == "onnxruntime" else "numpy"
    failure = _explain(name, numpy or _installed_numpy(), outcome, f"{fault}\n{outcome.output}")
    if name == "numpy":
        return Libraries((failure, Finding("onnxruntime", "skipped", "numpy comes first")), None)
    return Libraries((passed("numpy", numpy or _installed_numpy()), failure), None)


def _explain(name: str, numpy: str, outcome: ChildOutcome, words: str) -> Finding:
    """Return one plain sentence for how a library failed."""
    if outcome.signal == "SIGILL":
        advice = f'pip install "onnxruntime=={KNOWN_GOOD[0]}"; known good on older Arm boards: {" and ".join(KNOWN_GOOD)}'
        return Finding(name, "failed", f"this {name} build does not run on this processor (illegal instruction)", advice)
    for meaning in MEANINGS:
        match = re.search(meaning.pattern, words, re.IGNORECASE)
        if match:
            return Finding(name, "failed", meaning.sentence.format(*match.groups(), name=name, numpy=numpy), meaning.advice)
    if outcome.signal is not None or outcome.timed_out:
        how = "took too long" if outcome.timed_out else f"was killed by {outcome.signal}"
        return Finding(name, "failed", f"loading {name} {how}", "is there enough memory? try another version of it")
    return Finding(name, "failed", f"{name} cannot be loaded: {words.splitlines()[0][:200]}", "install it again")


def _last_words(outcome: ChildOutcome) -> str:
    """Return what a child without an answer said last."""
    if outcome.error is not None:
        return str(outcome.error["sentence"])
    return (outcome.output.splitlines() or ["no word"])[-1]


def _installed_numpy() -> str:
    """Return numpy's version without importing it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("numpy")
    except PackageNotFoundError:
        return "none"
