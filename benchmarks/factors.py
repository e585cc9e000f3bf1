"""Aggregating the LoRA factors of many clients: best pair of rank r from thin factors, against a dense SVD of the sum.

    python benchmarks/factors.py

Both ways run in turn, layer stack by layer stack, on the threads that OMP_NUM_THREADS gives; medians. The error is that of
our pair over the least possible, from a float64 SVD. ``--json`` for machines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer.factors.pair import Factors, stacked
from trainer.factors.product import best_of_rank

SPREADS = {"independent": None, "shared + 0.2 noise": 0.2}


def draw(clients: int, layers: int, width: int, rank: int, spread: float | None) -> list[Factors]:
    """Return Gaussian factors of each client: of its own, or common ones with noise."""
    generator = torch.Generator().manual_seed(0)
    shapes = (layers, rank, width), (layers, width, rank)
    common = [torch.randn(shape, generator=generator) for shape in shapes]
    pairs = []
    for _ in range(clients):
        own = [torch.randn(shape, generator=generator) for shape in shapes]
        a, b = own if spread is None else [base + spread * noise for base, noise in zip(common, own, strict=True)]
        pairs.append(Factors(a, b))
    return pairs


def dense(stack: Factors, rank: int) -> Factors:
    """Return the best pair the plain way, a layer at a time: form the sum, decompose it, cut."""
    pairs = []
    for a, b in zip(stack.a, stack.b, strict=True):
        left, values, right = torch.linalg.svd(b @ a, full_matrices=False)
        roots = values[:rank].sqrt()
        pairs.append((roots[:, None] * right[:rank], left[:, :rank] * roots))
    return Factors(torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs]))


def excess(stack: Factors, found: Factors, rank: int) -> Tensor:
    """Return the error over the least possible, minus one, of each layer."""
    rows = []
    for index in range(len(stack.a)):
        target = stack.b[index].double() @ stack.a[index].double()
        least = torch.linalg.svdvals(target)[rank:].square().sum().sqrt()
        rows.append(torch.linalg.matrix_norm(target - found.b[index].double() @ found.a[index].double()) / least - 1)
    return torch.stack(rows)


def measure(name: str, arguments: argparse.Namespace) -> dict[str, float | str]:
    """Return one row."""
    clients = draw(arguments.clients, arguments.layers, arguments.width, arguments.rank, SPREADS[name])
    stack = stacked(clients, torch.ones(len(clients)))
    seconds: dict[str, list[float]] = {"thin": [], "dense": []}
    for _ in range(arguments.repeats):
        for way, function in (("thin", best_of_rank), ("dense", dense)):
            began = time.perf_counter()
            found = function(stack, arguments.rank)
            seconds[way].append(time.perf_counter() - began)
            if way == "thin":
                ours = found
    thin, full = statistics.median(seconds["thin"]), statistics.median(seconds["dense"])
    worst = float(excess(stack, ours, arguments.rank).max())
    return {"spectrum": name, "thin_seconds": thin, "dense_seconds": full, "speedup": full / thin, "excess": worst}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [measure(name, arguments) for name in SPREADS]
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'spectrum':<20}{'thin s':>9}{'dense s':>9}{'faster':>9}{'error over optimum':>20}")
    for row in rows:
        figures = f"{row['thin_seconds']:>9.3f}{row['dense_seconds']:>9.3f}{row['speedup']:>8.1f}x"
        print(f"{row['spectrum']:<20}{figures}{row['excess']:>20.5%}")


if __name__ == "__main__":
    main()
