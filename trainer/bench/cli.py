"""``fedtailor bench``: how fast this machine simulates, as ratios to a plain PyTorch loop."""

from __future__ import annotations

import json
import os

import click
import torch
from rich.console import Console
from rich.table import Table

from protocol.console import ErrorGroup
from trainer.bench.simulation import WARM_UP_ROUNDS, Timing, time_simulation
from trainer.progress import count_progress

ROUNDS = {"mlp": 30, "cnn": 5}
CONTESTANTS = 4


@click.group(cls=ErrorGroup)
def bench() -> None:
    """Measure speed on this machine."""


@bench.command(epilog="Example: fedtailor bench simulation --work mlp --json")
@click.option("--work", "works", type=click.Choice(list(ROUNDS)), multiple=True, help="Which work; repeatable, both when left out.")
@click.option("--rounds", type=click.IntRange(min=1), help="Timed rounds of each contestant; 30 for the MLP, 5 for the CNN.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of torch, the same for all; all usable cores when left out.")
@click.option("--peers/--no-peers", default=True, show_default=True, help="Whether installed peers (pfl-research, Flower) run too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def simulation(works: tuple[str, ...], rounds: int | None, threads: int | None, *, peers: bool, as_json: bool, quiet: bool) -> None:
    """Time a federated round: a plain loop, our engines, and the peers that are installed.

    1,000 users with 50 samples, 50 users a round, one epoch in batches of 10. Contestants run in turn; figures are medians.
    """
    chosen = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(chosen)
    found: dict[str, Timing] = {}
    for work in works or tuple(ROUNDS):
        timed = rounds or ROUNDS[work]
        with count_progress(work, CONTESTANTS * (timed + WARM_UP_ROUNDS), quiet=quiet) as observe:
            found[work] = time_simulation(work, timed, observe, peers=peers)
    if as_json:
        click.echo(json.dumps({"threads": chosen, **{work: timing.as_values() for work, timing in found.items()}}))
    else:
        _print_table(found, chosen)


def _print_table(found: dict[str, Timing], threads: int) -> None:
    """Print seconds and ratios."""
    table = Table(title=f"Seconds per round, {threads} threads (ratio to the plain loop)")
    table.add_column("")
    names = list(dict.fromkeys(name for timing in found.values() for name in timing.seconds))
    for work in found:
        table.add_column(work, justify="right")
    for name in names:
        cells = []
        for timing in found.values():
            value = timing.seconds.get(name)
            cells.append("" if value is None else f"{value:.4f} ({value / timing.seconds['plain']:.2f}x)")
        table.add_row(name, *cells)
    console = Console()
    console.print(table)
    for work, timing in found.items():
        console.print(f"{work}: auto took {timing.choice}: {timing.reason}", soft_wrap=True)
