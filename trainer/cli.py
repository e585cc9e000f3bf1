"""``fedtailor train``: run a method's federation on this machine and keep everything in a run folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from protocol.errors import InputError
from trainer.data.partitions.registry import PARTITIONS
from trainer.experiments import Experiment, load_experiment
from trainer.methods.registry import METHODS, merged
from trainer.progress import round_progress
from trainer.runs import Run
from trainer.training import ENGINES, Training

SPLIT_OPTIONS = ("participants", "new_devices", "partition", "concentration", "classes_per_client", "minimum_samples", "validation_share")


def experiment_options(command: Any) -> Any:
    """Add the options that describe an experiment to a command; left-out ones keep the configuration's or preset's value."""
    options = (
        click.option("--config", type=click.Path(path_type=Path), help="A TOML file that describes the experiment; options override it."),
        click.option("--data", help="digits, fashion-mnist, a folder, a file, or module:function (see docs/data.md)."),
        click.option("--rounds", type=click.IntRange(min=1), help="Rounds of training; the data set's preset when left out."),
        click.option("--participants", type=click.IntRange(min=1, max=100_000), help="Clients that take part; preset when left out."),
        click.option("--new-devices", type=click.IntRange(min=1, max=100_000), help="Clients held out whole; preset when left out."),
        click.option("--partition", type=click.Choice(list(PARTITIONS)), help="How data become devices; dirichlet when left out."),
        click.option("--concentration", type=click.FloatRange(min=0, min_open=True), help="Dirichlet parameter of the class mixes."),
        click.option("--classes-per-client", type=click.IntRange(min=1), help="For the partition by classes."),
        click.option("--minimum-samples", type=click.IntRange(min=0), help="Samples that each device has at least."),
        click.option("--validation-share", type=click.FloatRange(0, 0.9), help="Share of participants' training data set aside."),
        click.option(
            "--fraction", type=click.FloatRange(0, 1, min_open=True), help="Share of the participants in each round; all of them."
        ),
        click.option("--model", help="Classifier: mlp-64, lenet, resnet20, ... or module:factory (see docs/models.md)."),
        click.option("--backbone", help="Frozen network in front: module:factory or an ONNX file; methods then work on its features."),
        click.option("--engine", type=click.Choice(ENGINES), help="How local steps run; auto times them and picks."),
        click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Where tensors live; auto takes a GPU if there is one."),
        click.option("--threads", type=click.IntRange(min=1), help="Threads of torch; 1 for small models, else all cores."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def experiment_from(options: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a command's options, over its configuration file if it names one."""
    base = load_experiment(options["config"]) if options.get("config") else Experiment()
    given = {name: value for name, value in options.items() if value is not None and name != "config"}
    split = dict(base.split) | {name: given.pop(name) for name in SPLIT_OPTIONS if name in given}
    fields = {field.name for field in dataclasses.fields(Experiment)}
    if "model" in given:  # an option comes over what the file says of single methods
        given["methods"] = {name: {key: value for key, value in own.items() if key != "model"} for name, own in base.methods.items()}
    return dataclasses.replace(base, split=split, **{name: value for name, value in given.items() if name in fields})


@click.command(epilog="Example: fedtailor train hyperfedzero --data fashion-mnist --rounds 300 --seed 0 --out runs/first")
@click.argument("method", required=False)
@experiment_options
@click.option("--seed", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Seed of everything random.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting of the method, VALUE as JSON; repeatable.")
@click.option("--checkpoint-every", type=click.IntRange(min=1), help="Rounds between two checkpoints; 25 when left out.")
@click.option("--resume", type=click.Path(path_type=Path), help="Carry an interrupted run on, to the same result; takes no other choice.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder; runs/METHOD-XXXX when left out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def train(**options: Any) -> None:
    """Train METHOD, or a variant that the configuration file names, and evaluate its last round."""
    training = _prepare(options)
    config = training.run.config
    with round_progress(config.method, config.rounds, quiet=options["quiet"]) as observe:
        content = training.finish(observe)
    if options["as_json"]:
        click.echo(json.dumps({"run": str(training.run.path), "method": config.method, **content}))
    else:
        _print_table(training.run, content)


def _prepare(options: Mapping[str, Any]) -> Training:
    """Return a new run, or the one to carry on."""
    if options["resume"] is not None:
        if options["method"] is not None or options["out"] is not None or options["assignments"]:
            raise InputError(
                "--resume takes no other choice", expected="fedtailor train --resume FOLDER", hint="the folder holds all settings"
            )
        return Training.resume(options["resume"])
    if options["method"] is None:
        raise InputError("no method was named", expected=" or ".join(METHODS), hint="fedtailor train METHOD, or --resume FOLDER")
    method, experiment = experiment_from(options).resolve(options["method"])
    own = merged(experiment.methods.get(method, {}), parse_assignments(options["assignments"]))
    experiment = dataclasses.replace(experiment, methods={**experiment.methods, method: own})
    return Training.start(experiment, method, options["seed"], options["out"])


def parse_assignments(assignments: tuple[str, ...]) -> dict[str, Any]:
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
    for heading in ("", "gACC", "pACC", "zACC", "worst tenth"):
        table.add_column(heading, justify="right")
    for name, row in (("as it is", content), ("with label shift corrected", content["shifted"])):
        table.add_row(name, *(f"{row[key]:.1%}" for key in ("gacc", "pacc", "zacc", "worst_tenth")))
    console = Console()
    console.print(table)
    sent = (content["bytes_up"] + content["bytes_down"]) / 1e6
    uses = {"nothing": "nothing", "samples": "unlabelled samples", "labels": "labelled samples and local steps"}[content["new_device_uses"]]
    console.print(f"{content['parameters']:,} parameters travel, {sent:.1f} MB in all; {content['train_seconds']:.1f} s of training")
    console.print(f"a new device uses {uses}")
    console.print(f"run folder: {run.path}", soft_wrap=True, highlight=False)
