"""All checks in the order in which one depends on the other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_runtime.child import Limits
from edge_runtime.doctor.broker import check_broker
from edge_runtime.doctor.clock import check_clock
from edge_runtime.doctor.findings import Finding, passed
from edge_runtime.doctor.libraries import check_libraries
from edge_runtime.doctor.machine import check_disk, check_memory, check_threads
from edge_runtime.doctor.system import check_libc, check_processor, check_python
from edge_runtime.doctor.versions import check_versions
from edge_runtime.selftest import SelfTestReport, check_selftest
from edge_runtime.store_rules import check_target
from protocol.broker_address import BrokerAddress
from protocol.bundle import VerifiedBundle, open_bundle
from protocol.errors import FedtailorError
from protocol.trust import open_trusted


@dataclass(frozen=True)
class Question:
    """What a doctor is asked.

    Attributes:
        bundle: A bundle's folder, or None: then only the device is looked at.
        trusted: Public key file of whoever released it.
        targets: Hardware groups of this device.
        store: Where a store would be.
        broker: The broker, or None.
    """

    bundle: Path | None
    trusted: Path | None
    targets: tuple[str, ...]
    store: Path
    broker: BrokerAddress | None


def examine(question: Question) -> list[Finding]:
    """Return all findings; nothing is raised for what is wrong with the device or the bundle."""
    findings = [check_python(), check_libc(), check_processor()]
    libraries = check_libraries()
    findings += libraries.findings
    opened, lines = _open(question)
    findings += lines
    manifest = None if opened is None else opened.manifest
    size = 0 if manifest is None else sum(entry.length for entry in manifest.files.values())
    report = None
    if opened is not None and manifest is not None:
        findings.append(check_versions(manifest, libraries.runtime))
        report, line = _compute(opened, libraries.runtime)
        findings.append(line)
    peak = None if report is None else report.peak_bytes
    findings += [check_memory(size, peak), check_threads(), check_disk(question.store, size), check_clock(manifest)]
    if question.broker is not None:
        findings.append(check_broker(question.broker))
    return findings


def _open(question: Question) -> tuple[VerifiedBundle | None, list[Finding]]:
    """Verify the bundle and compare its hardware group."""
    if question.bundle is None or question.trusted is None:
        return None, []
    try:
        opened = open_bundle(question.bundle, open_trusted(question.trusted))
    except FedtailorError as error:
        return None, [Finding("bundle", "failed", error.what, error.hint or "get it again")]
    found = f"{opened.manifest.name} version {opened.manifest.bundle_version}, signed by {opened.signer}"
    try:
        check_target(opened.manifest, question.targets)
    except FedtailorError as error:
        return opened, [passed("bundle", found), Finding("hardware", "failed", f"the bundle is for {error.got}", error.hint or "")]
    return opened, [passed("bundle", found), passed("hardware", f"the bundle is for {opened.manifest.target}")]


def _compute(opened: VerifiedBundle, runtime: str | None) -> tuple[SelfTestReport | None, Finding]:
    """Run the self-test, which loads every graph and so needs every operator."""
    operators = len({operator for graph in opened.manifest.graphs.values() for operator in graph.operators})
    if runtime is None:
        return None, Finding("self-test", "skipped", f"{operators} operators; ONNX Runtime comes first")
    try:
        report = check_selftest(opened.path, opened.digest, Limits())
    except FedtailorError as error:
        return None, Finding("self-test", "failed", error.sentence(), "export the bundle again, or for this device")
    found = f"{operators} operators run, worst difference {report.worst_difference:.1e}, loaded in {1000 * report.load_seconds:.0f} ms"
    return report, passed("self-test", found)
