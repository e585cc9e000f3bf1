"""``fedtailor demo``: the commands in a row, then what happened."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from export.demo.commands import Commands
from export.demo.exchange import exchange_prototypes, exchanging
from export.demo.plan import SERVER_KEYS, DemoPlan
from export.demo.report import class_mix, print_report
from export.demo.tailoring import tailor_all
from export.demo.training import export_bundle, hand_out_data, make_keys, train
from protocol.errors import InputError
from trainer.runs import Run

COMMAND_TIMEOUT_SECONDS = 1800.0


@click.command(epilog="Example: fedtailor demo --data fashion-mnist --seed 1 --json")
@click.option("--data", default="digits", show_default=True, help="digits, fashion-mnist, a folder of IDX files, or an .npz file.")
@click.option("--seed", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Seed of everything random.")
@click.option("--rounds", type=click.IntRange(min=1), help="Rounds of training; the data set's preset when left out.")
@click.option("--broker", metavar="URL", help="mqtt://host:port of a broker; an embedded one is started when left out.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for everything the demo makes; runs/demo-TIME when left out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the table.")
def demo(data: str, seed: int, rounds: int | None, broker: str | None, out: Path | None, as_json: bool) -> None:
    """Train, export, sign, personalise on new devices, exchange prototypes over a broker, compare.

    Trains FedAvg and HyperFedZero on real data, puts HyperFedZero into a signed bundle, and lets every new device make
    its own classifier from unlabelled samples in a process without torch.
    """
    root = out or Path("runs") / f"demo-{datetime.now().astimezone():%Y%m%d-%H%M%S-%f}"
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise InputError("the demo's folder is not empty", got=str(root), hint="name another with --out")
    with Commands(COMMAND_TIMEOUT_SECONDS) as commands:
        report = run_demo(DemoPlan(data, seed, rounds, broker, root), commands, Console(stderr=True))
    if as_json:
        click.echo(json.dumps(report))
    else:
        print_report(Console(), report)


def run_demo(plan: DemoPlan, commands: Commands, console: Console) -> dict[str, Any]:
    """Run the whole demo and return its report; progress goes to the console."""
    fedavg, ours = (train(plan, commands, method) for method in ("fedavg", "hyperfedzero"))
    data, answers = hand_out_data(plan)
    names = [*SERVER_KEYS, *exchanging(data), *(device.device for device in data.new_devices)]
    columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        make_keys(plan, commands, names)
        exported = progress.add_task("export", total=1)
        export_bundle(plan, commands)
        progress.advance(exported)
        tailor_bar = progress.add_task("tailor", total=len(data.new_devices))
        tailored = tailor_all(plan, commands, data.new_devices, answers, lambda: progress.advance(tailor_bar))
        exchange_bar = progress.add_task("prototypes", total=len(names) - 2)
        reports = exchange_prototypes(plan, commands, data, lambda: progress.advance(exchange_bar))
    page = plan.root / "report.html"
    commands.run("report", plan.run("fedavg"), plan.run("hyperfedzero"), "--out", page)
    classes = Run.open(plan.run("hyperfedzero")).config.task.classes
    devices = [
        {
            "id": name,
            "samples": result.samples,
            "class_mix": class_mix(answers.query_labels[name], classes),
            "fedavg_accuracy": fedavg["new_devices"][name],
            "tailored_accuracy": result.accuracy,
            "nearest_prototype_accuracy": reports[name]["nearest_prototype_accuracy"],
            "personalize_ms": result.personalize_ms,
            "bytes_up": reports[name]["bytes_up"],
            "bytes_down": reports[name]["bytes_down"],
        }
        for name, result in tailored.items()
    ]
    return {
        "data": plan.data,
        "seed": plan.seed,
        "folder": str(plan.root),
        "page": page.resolve().as_uri(),
        "fedavg_zacc": float(np.mean([device["fedavg_accuracy"] for device in devices])),
        "tailored_zacc": float(np.mean([device["tailored_accuracy"] for device in devices])),
        "train_seconds": ours["train_seconds"],
        "fedavg_train_seconds": fedavg["train_seconds"],
        "parameters": ours["parameters"],
        "classifier_parameters": ours["classifier_parameters"],
        "devices": devices,
        "participants": {name: reports[name] for name in exchanging(data)},
        "commands": commands.shown,
    }
