"""Python, the C library and the processor."""

from __future__ import annotations

import platform
import re
import struct
import sys
from pathlib import Path

from edge_runtime.doctor.findings import Finding, passed

OLDEST_PYTHON = (3, 10)
OLDEST_GLIBC = (2, 27)  # of the manylinux wheels of ONNX Runtime 1.19; newer wheels say so themselves
CPUINFO = Path("/proc/cpuinfo")
# Kernels of ONNX Runtime that small models profit from; none is required.
FEATURES = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "neon", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "v")
WHEELS = "Linux x86-64 and arm64 (64-bit), macOS, Windows"


def check_python() -> Finding:
    """Look at the interpreter; a 32-bit one has no ONNX Runtime."""
    version, bits = platform.python_version(), 8 * struct.calcsize("P")
    found = f"{version}, {bits}-bit, {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        return Finding("python", "failed", found, "use Python 3.10 or newer")
    if bits == 32:
        return Finding("python", "failed", found, f"there are ONNX Runtime wheels for {WHEELS}; install a 64-bit system")
    return passed("python", found)


def check_libc() -> Finding:
    """Look at the C library, which binary wheels are built against."""
    name, version = platform.libc_ver()
    if name != "glibc":
        found = name or "no glibc (musl?)"
        return Finding("libc", "note", found, "wheels of ONNX Runtime need glibc: use Debian, Raspberry Pi OS or Ubuntu, not Alpine")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_GLIBC:
        return Finding("libc", "failed", f"glibc {version}", "ONNX Runtime 1.19 needs glibc 2.27: update the system")
    return passed("libc", f"glibc {version}")


def check_processor() -> Finding:
    """Name the processor and the instruction sets that matter for speed."""
    text = CPUINFO.read_text(errors="replace") if CPUINFO.exists() else ""
    model = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features|isa)\s*:\s*(.+)$", text, re.MULTILINE)
    present = set(flags[1].split()) if flags else set()
    named = [feature for feature in FEATURES if feature in present]
    found = f"{model[1].strip() if model else platform.machine()}; {' '.join(named) or 'no instruction set known'}"
    return passed("processor", found)
