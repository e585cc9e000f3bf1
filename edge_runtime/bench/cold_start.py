"""From an empty process to the first label, measured from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import NumericalError
from protocol.trust import FORMAT, Trusted, TrustFile, TrustPolicy

PROGRAM = """
import json, re, sys
from pathlib import Path
import numpy as np
from edge_runtime import Bundle
bundle = Bundle.open(sys.argv[1], trusted=sys.argv[2])
samples = np.load(sys.argv[3])
bundle.personalize(samples).predict(samples[:1])
status = Path("/proc/self/status")
found = re.search(r"VmHWM:\\s+(\\d+)", status.read_text()) if status.is_file() else None
print(json.dumps(None if found is None else int(found[1]) / 1024))
"""
DEADLINE_SECONDS = 120
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ColdStart:
    """What a process needs until its first label: seconds, the interpreter's start included, and its largest resident memory."""

    seconds: float
    megabytes: float | None


def cold_start(bundle: Path, trusted: Trusted, folder: Path, samples: NDArray[np.generic], runs: int = 3) -> ColdStart:
    """Return the best of some runs: what the program needs, not what else this machine does.

    Args:
        bundle: The bundle's folder.
        trusted: What must have signed it.
        folder: Where two files may be written.
        samples: Raw samples to personalise from, (N, *shape).
        runs: How many processes.

    Raises:
        NumericalError: The process failed.
    """
    places = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    np.save(folder / "support.npy", samples)
    TrustFile(FORMAT, TrustPolicy.of(trusted), {}).save(folder / "trust.json")
    command = [sys.executable, "-c", PROGRAM, str(bundle.resolve()), str(folder / "trust.json"), str(folder / "support.npy")]
    found = []
    for _ in range(runs):
        started = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
        seconds = time.perf_counter() - started
        if done.returncode:
            raise NumericalError("a fresh process gave no label", got=done.stderr.strip()[-200:])
        found.append(ColdStart(round(seconds, 3), json.loads(done.stdout)))
    return min(found, key=lambda each: each.seconds)
