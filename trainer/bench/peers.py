"""Other simulators on the same work, where they are installed: pfl-research and Flower.

Each runs in a process of its own, because both change the process that loads them.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import subprocess
import sys

logger = logging.getLogger(__name__)

PEERS = {"pfl": ("pfl", "trainer.bench.peer_pfl"), "flower": ("flwr", "trainer.bench.peer_flower")}
SECONDS_LINE = re.compile(r"^s_per_round ([0-9.]+)$", re.MULTILINE)
LONGEST_SECONDS = 1800


def peer_seconds(work: str, rounds: int) -> dict[str, float]:
    """Return seconds per round of each installed peer; one that fails is left out, with a warning."""
    found = {}
    for name, (package, module) in PEERS.items():
        if importlib.util.find_spec(package) is None:
            continue
        command = [sys.executable, "-m", module, work, str(rounds)]
        try:
            output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONGEST_SECONDS).stdout
        except (subprocess.SubprocessError, OSError) as error:
            logger.warning("%s did not run: %s", name, error)
            continue
        match = SECONDS_LINE.search(output)
        if match is not None:
            found[name] = float(match.group(1))
    return found
