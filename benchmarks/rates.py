"""Rates and coefficients of every method from one written grid, on participants' validation data alone.

    python benchmarks/rates.py --workers 4

Four candidates for each method, the same effort for all; the seed is none of those that results are reported on, and the
figure is the accuracy on made-up devices drawn from what the participants set aside (``validation`` in
``evaluation.json``). Finished runs are kept, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RATES = [{"learning_rate": rate} for rate in (0.03, 0.1, 0.2, 0.3)]
GRID = {
    "fedavg": RATES,
    "hyperfedzero": RATES,
    "fedavg-ft": [{"finetune_rate": rate, "finetune_steps": steps} for rate, steps in ((0.01, 50), (0.03, 50), (0.1, 50), (0.03, 200))],
    "fedprox": [{"mu": mu} for mu in (0.001, 0.01, 0.1, 1.0)],
    "scaffold": [{"learning_rate": rate} for rate in (0.01, 0.03, 0.1, 0.2)],
    "ditto": [{"pull": pull} for pull in (0.01, 0.1, 1.0, 2.0)],
    "pfedme": [{"learning_rate": rate, "personal_rate": own} for rate, own in ((0.005, 0.05), (0.02, 0.05), (0.05, 0.05), (0.05, 0.1))],
    "perfedavg": [{"learning_rate": rate, "inner_rate": inner} for rate, inner in ((0.05, 0.01), (0.1, 0.01), (0.1, 0.03), (0.1, 0.1))],
    "fedjets": [{"learning_rate": rate, "warmup_rounds": 33} for rate in (0.03, 0.1, 0.2, 0.3)],  # a third of the grid's rounds
    "pfedhn": [{"learning_rate": rate, "server_rate": own} for rate, own in ((0.05, 0.03), (0.1, 0.03), (0.05, 0.1), (0.1, 0.1))],
    "local": RATES,
}


def name_of(method: str, settings: dict[str, float]) -> str:
    """Return the name of a candidate's folder."""
    return "-".join([method, *(f"{name}={value:g}" for name, value in settings.items())])


def run(method: str, settings: dict[str, float], arguments: argparse.Namespace) -> tuple[str, float]:
    """Train one candidate, unless that is done, and return its name and validation accuracy."""
    name = name_of(method, settings)
    folder = arguments.out / name
    if not (folder / "evaluation.json").is_file():
        words = [word for setting, value in settings.items() for word in ("--set", f"{setting}={json.dumps(value)}")]
        command = [sys.executable, "-m", "fedtailor", "train", method, "--config", str(arguments.config), *words]
        command += ["--seed", str(arguments.seed), "--rounds", str(arguments.rounds), "--out", str(folder), "--quiet", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return name, float("nan")
    return name, json.loads((folder / "evaluation.json").read_bytes())["validation"]


def main() -> None:
    """Run the grid and print one line a candidate, the best of each method marked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("examples/experiments/fashion-mnist.toml"))
    parser.add_argument("--methods", nargs="*", default=list(GRID))
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/rates"))
    arguments = parser.parse_args()
    with ThreadPoolExecutor(arguments.workers) as pool:
        found = {method: [pool.submit(run, method, settings, arguments) for settings in GRID[method]] for method in arguments.methods}
        for futures in found.values():
            rows = [future.result() for future in futures]
            best = max((value for _, value in rows if not math.isnan(value)), default=float("nan"))
            for name, value in rows:
                print(f"{name:45s} {100 * value:6.2f}{'  <' if value == best else ''}", flush=True)


if __name__ == "__main__":
    main()
