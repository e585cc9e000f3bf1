"""``fedtailor compare``: several methods over paired seeds, with intervals."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from trainer.cli import experiment_from, experiment_options
from trainer.comparison import (
    CORRECTED,
    METRICS,
    Summary,
    as_json,
    mixed_environments,
    pending,
    plan_jobs,
    read_results,
    run_jobs,
    summarise,
)
from trainer.experiments import Experiment
from trainer.progress import count_progress
from trainer.report import write_report
from trainer.runs import Run
from trainer.statistics import Interval

USES = {"nothing": "nothing", "samples": "x only", "labels": "labels"}
EXAMPLE = "Example: fedtailor compare hyperfedzero fedavg fedavg+em --config examples/experiments/fashion-mnist.toml --seeds 5"
NOT_OPTIONS = ("config", "names", "seeds", "first_seed", "workers", "out", "as_json", "quiet")


@click.command(epilog=EXAMPLE)
@click.argument("names", nargs=-1, required=True, metavar="METHODS...")
@experiment_options
@click.option("--seeds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Seeds, the same for every method.")
@click.option("--first-seed", type=click.IntRange(min=0), default=0, show_default=True, help="The first of them.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Trainings at a time.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs; runs/compare-XXXX when left out. Finished runs are kept.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def compare(**options: Any) -> None:
    """Train METHODS with equal budgets on the same cuts, and say what the differences are worth.

    METHOD+em is a method whose label shift is corrected on each device. Names of variants in the configuration file count as
    methods.
    """
    names, experiment = list(dict.fromkeys(options["names"])), experiment_from(options)
    for name in names:
        experiment.resolve(name.removesuffix(CORRECTED))
    seeds = range(options["first_seed"], options["first_seed"] + options["seeds"])
    folder = options["out"] or Path("runs") / f"compare-{_identity(experiment, names)}"
    jobs = plan_jobs(names, seeds, folder)
    missing = pending(jobs, experiment)
    with count_progress("compare", len(jobs), quiet=options["quiet"]) as observe:
        finished = len(jobs) - len(missing)
        observe(finished)
        run_jobs(missing, train_arguments(options), options["workers"], lambda done: observe(finished + done))
    results = read_results(names, seeds, folder)
    summaries = summarise(results)
    runs = [Run.open(job.folder) for job in jobs]
    write_report(runs, folder / "report.html")
    warnings = mixed_environments(runs)
    if options["as_json"]:
        click.echo(as_json(results, summaries, folder, warnings))
    else:
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        _print_tables(summaries, seeds, folder)


def train_arguments(options: Mapping[str, Any]) -> list[str]:
    """Return the options of ``fedtailor train`` that say the same as this command's."""
    words = ["--config", str(options["config"])] if options["config"] else []
    for name, value in options.items():
        if value is not None and name not in NOT_OPTIONS:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _identity(experiment: Experiment, names: Sequence[str]) -> str:
    """Return four hex digits that tell comparisons apart."""
    content = json.dumps([dataclasses.asdict(experiment), list(names)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:4]


def _print_tables(summaries: Sequence[Summary], seeds: range, folder: Path) -> None:
    """Print means, and paired differences to the first method; methods that use labels stand apart."""
    console = Console()
    first = summaries[0].method
    table = Table(title=f"{len(seeds)} paired seeds, last round: mean, 95 % interval", show_lines=False)
    table.add_column("method", no_wrap=True)
    for heading in (*(metric[0] + "ACC" for metric in METRICS), "zACC behind\nthe first", "MB", "s"):
        table.add_column(heading, justify="right")
    for uses in ("nothing", "samples", "labels"):
        group = [each for each in summaries if each.new_device_uses == uses]
        if group:
            table.add_row(f"[italic]new device: {USES[uses]}[/italic]")
        for each in group:
            behind = "" if each.method == first else _points(each.differences["zacc"], signed=True)
            cells = [_points(each.means[metric]) for metric in METRICS]
            table.add_row(each.method, *cells, behind, f"{each.megabytes:.0f}", f"{each.seconds:.0f}")
    console.print(table)
    console.print(f"runs and report: {folder}", soft_wrap=True, highlight=False)


def _points(interval: Interval, *, signed: bool = False) -> str:
    """Return an interval in points."""
    mean, low, high = (f"{100 * value:{'+' if signed else ''}.1f}" for value in interval)
    return f"{mean}\n{low}..{high}"
