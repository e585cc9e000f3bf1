"""Resident memory of a long simulation: 1,000 simulated clients, 50 a round, at rounds 5 and 50."""

from __future__ import annotations

import os

from trainer.bench.contestants import federated
from trainer.bench.work import make_work
from trainer.engine.cohort import CohortEngine

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_megabytes() -> float:
    """Return this process's resident memory."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123  # no file in the usual sense
        return int(file.read().split()[1]) * PAGE / 1e6


def main() -> None:
    """Run 50 rounds and print two figures."""
    run = federated(make_work("mlp"), CohortEngine())
    found = {}
    for number in range(1, 51):
        run(number)
        if number in (5, 50):
            found[number] = resident_megabytes()
    print(f"round 5: {found[5]:.1f} MB, round 50: {found[50]:.1f} MB, ratio {found[50] / found[5]:.3f}")


if __name__ == "__main__":
    main()
