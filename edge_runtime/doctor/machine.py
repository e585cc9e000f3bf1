"""Memory, processor time and disk space that the system really grants, control groups included."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from edge_runtime.doctor.findings import Finding, passed

MEMINFO = Path("/proc/meminfo")
CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
BASE_BYTES = 60 << 20  # interpreter, numpy, ONNX Runtime and one small session, measured
COPIES_IN_MEMORY = 3  # the bytes that were hashed, the weights, the packed weights
COPIES_ON_DISK = 3  # a store keeps the bundle in use and the one before while the next is copied
SPARE_BYTES = 1 << 20


def check_memory(bundle_bytes: int, measured: int | None) -> Finding:
    """Compare what is available with what the self-test took, or, where it did not run, with an estimate.

    Args:
        bundle_bytes: Size of the bundle's files.
        measured: Peak of the self-test's process in bytes, or None.
    """
    need = measured or BASE_BYTES + COPIES_IN_MEMORY * bundle_bytes
    needed = f"{need / 2**20:.0f} MB {'measured in the self-test' if measured else 'estimated'}"
    available = available_memory()
    if available is None:
        return Finding("memory", "note", f"unknown; {needed} needed")
    found = f"{available / 2**20:,.0f} MB available, {needed}"
    if available < need:
        return Finding("memory", "failed", found, "end other programs, or export a smaller bundle")
    if available < 2 * need:
        return Finding("memory", "note", found, "little is left for the program around it")
    return passed("memory", found)


def available_memory() -> int | None:
    """Return the bytes that this process may still take, or None where the system does not say."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text(), re.MULTILINE) if MEMINFO.exists() else None
    bounds = [] if match is None else [1024 * int(match[1])]
    for group in _own_groups():
        for limit, usage in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
            allowed, used = _number(group / limit), _number(group / usage)
            if allowed is not None and used is not None:
                bounds.append(max(0, allowed - used))
    return min(bounds, default=None)


def check_threads() -> Finding:
    """Say how many cores the scheduler grants, which is what to give ONNX Runtime at most."""
    cores, quota = len(os.sched_getaffinity(0)), cpu_quota()
    there = os.cpu_count() or cores
    found = f"{cores} of {there} cores allowed" + ("" if quota is None else f", a quota of {quota:.2g} cores")
    if quota is not None and quota < 1:
        return Finding("threads", "note", found, "use one thread; each call may pause when the quota is used up")
    return passed("threads", found)


def cpu_quota() -> float | None:
    """Return the cores' worth of time that a control group grants, or None for no limit."""
    quotas = []
    for group in _own_groups():
        words = _words(group / "cpu.max")  # "max 100000" or "50000 100000"
        if len(words) == 2 and words[0] != "max":
            quotas.append(int(words[0]) / int(words[1]))
        older, span = _number(group / "cpu/cpu.cfs_quota_us"), _number(group / "cpu/cpu.cfs_period_us")
        if older is not None and older > 0 and span:
            quotas.append(older / span)
    return min(quotas, default=None)


def _own_groups() -> list[Path]:
    """Return the folders of this process's control group and of those around it; each may set a limit."""
    match = re.search(r"^0::/(.*)$", OWN_GROUP.read_text(), re.MULTILINE) if OWN_GROUP.exists() else None
    own = CONTROL_GROUPS / (match[1] if match else "")
    return [own, *(parent for parent in own.parents if parent.is_relative_to(CONTROL_GROUPS))]


def check_disk(folder: Path, bundle_bytes: int) -> Finding:
    """Compare the free space with what a store of such bundles takes, and see whether it can be written."""
    place = next((each for each in (folder, *folder.absolute().parents) if each.exists()), Path("/"))
    need, free = COPIES_ON_DISK * bundle_bytes + SPARE_BYTES, shutil.disk_usage(place).free
    found = f"{free / 2**20:,.0f} MB free at {place}, {need / 2**20:.1f} MB for a store"
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        return Finding("disk", "note", f"{place} is read-only", "a bundle runs there, but no store can be kept")
    if free < need:
        return Finding("disk", "failed", found, "free some space")
    return passed("disk", found)


def _words(path: Path) -> list[str]:
    """Return the words in a file of the kernel, or none."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    """Return the number in a file of the kernel, or None if it is absent or says "max"."""
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None
