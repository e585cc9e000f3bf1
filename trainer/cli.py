"""``fedtailor train``: run a method's federation on this machine and keep everything in a run folder."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from protocol.errors import InputError
from trainer.data.dataset import Dataset
from trainer.data.datasets import load_dataset
from trainer.data.presets import preset_for
from trainer.engine.base import RoundResult
from trainer.methods.base import MethodSettings, State
from trainer.methods.registry import METHODS, merged, method_settings, settings_as_values
from trainer.runs import Run, RunConfig, environment
from trainer.simulation import Federation, task_of

SMALL_MODEL_WEIGHTS = 20_000


@dataclass(frozen=True)
class TrainRequest:
    """What the command line asks for; each field is the option of the same name."""

    method: str
    data: str
    rounds: int | None
    seed: int
    participants: int | None
    new_devices: int | None
    assignments: tuple[str, ...]
    out: Path | None
    as_json: bool
    quiet: bool
    threads: int | None


@click.command(epilog="Example: fedtailor train hyperfedzero --data fashion-mnist --rounds 300 --seed 0 --out runs/first")
@click.argument("method", type=click.Choice(list(METHODS)))
@click.option("--data", default="digits", show_default=True, help="digits, fashion-mnist, a folder of IDX files, or an .npz file.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of training; the data set's preset when left out.")
@click.option("--seed", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Seed of everything random.")
@click.option("--participants", type=click.IntRange(min=1, max=1000), help="Clients that take part; preset when left out.")
@click.option("--new-devices", type=click.IntRange(min=1, max=1000), help="Clients held out whole; preset when left out.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting of the method, VALUE as JSON; repeatable.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder; runs/METHOD-XXXX when left out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of torch; 1 for small models and all cores for others when left out.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def train(**options: Any) -> None:
    """Train METHOD and evaluate its last round."""
    request = TrainRequest(**options)
    run, federation = _prepare(request)
    content = _train_with_progress(federation, run, quiet=request.quiet)
    if request.as_json:
        click.echo(json.dumps({"run": str(run.path), "method": request.method, **content}))
    else:
        _print_table(run, content)


def _prepare(request: TrainRequest) -> tuple[Run, Federation]:
    """Return a new run folder and the federation it will hold."""
    dataset = load_dataset(request.data)
    preset = preset_for(dataset.name)
    values = merged(preset.methods.get(request.method, {}), _parse_assignments(request.assignments))
    settings = method_settings(request.method, values)
    torch.set_num_threads(request.threads or _suitable_threads(dataset, settings))
    federation = Federation(settings, dataset, participants=request.participants, new_devices=request.new_devices, seed=request.seed)
    rounds = preset.rounds if request.rounds is None else request.rounds
    config = RunConfig(
        method=request.method,
        settings=settings_as_values(settings),
        data=request.data,
        split=federation.split,
        task=federation.task,
        rounds=rounds,
        seed=request.seed,
        environment=environment(),
    )
    return Run.create(request.out or Path("runs") / f"{request.method}-{config.identity()}", config), federation


def _suitable_threads(dataset: Dataset, settings: MethodSettings) -> int:
    """Return 1 for small models, whose operations are too short to share, and the number of usable cores for others."""
    method = settings.bind(task_of(dataset))
    weights = method.sizes(method.initial_state(0))["classifier_parameters"]
    return 1 if weights < SMALL_MODEL_WEIGHTS else len(os.sched_getaffinity(0))


def _train_with_progress(federation: Federation, run: Run, *, quiet: bool) -> dict[str, Any]:
    """Train, write metrics, checkpoint and evaluation into the run folder, and return the evaluation's content."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as progress:
        bar = progress.add_task(f"{run.config.method:>12}", total=run.config.rounds, loss="")

        def on_round(number: int, result: RoundResult, _: State) -> None:
            run.log({"round": number, "loss": result.loss})
            progress.update(bar, advance=1, loss=f"loss {result.loss:.3f}")

        fitted = federation.fit(run.config.rounds, on_round)
    run.save_checkpoint(fitted.state, run.config.rounds)
    return run.save_evaluation(fitted.evaluate(), fitted.method.sizes(fitted.state), fitted.seconds)


def _parse_assignments(assignments: tuple[str, ...]) -> dict[str, Any]:
    """Return settings from NAME=VALUE words; a value that is no JSON is taken as text."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name:
            raise InputError("--set was not understood", expected="NAME=VALUE", got=repr(assignment))
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
        except RecursionError as error:
            raise InputError(f"the value of {name} is nested too deeply") from error
    return values


def _print_table(run: Run, content: dict[str, Any]) -> None:
    """Print the accuracies of a run."""
    table = Table(title=f"{run.config.method} on {run.config.data}, {run.config.rounds} rounds, seed {run.config.seed}")
    for heading in ("gACC", "pACC", "zACC", "worst new device", "parameters", "seconds"):
        table.add_column(heading, justify="right")
    worst = min(content["new_devices"].values())
    shares = [f"{content[name]:.1%}" for name in ("gacc", "pacc", "zacc")]
    table.add_row(*shares, f"{worst:.1%}", f"{content['parameters']:,}", f"{content['train_seconds']:.1f}")
    console = Console()
    console.print(table)
    console.print(f"run folder: {run.path}", soft_wrap=True, highlight=False)
