"""What the demo shows: one row per new device, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

SHOWN_CLASSES = 2


def class_mix(labels: NDArray[np.int64], classes: tuple[str, ...]) -> dict[str, float]:
    """Return the share of each class that occurs, the largest first.

    Args:
        labels: Class indices, (Q,) int64.
        classes: Class names.
    """
    counts = np.bincount(labels, minlength=len(classes))
    return {classes[place]: round(float(counts[place] / len(labels)), 4) for place in np.argsort(-counts, kind="stable") if counts[place]}


def print_report(console: Console, report: dict[str, Any]) -> None:
    """Print the table of the new devices and the means below it."""
    title = f"New devices on {report['data']}: no labels, no training, no torch"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_footer=True, footer_style="bold", padding=(0, 1, 0, 0))
    footers = _footers(report)
    for heading in ("device", "samples", "class mix", "FedAvg", "tailored", "nearest", "ms", "up", "down"):
        side: JustifyMethod = "left" if heading in ("device", "class mix") else "right"
        table.add_column(heading, footers.get(heading, ""), justify=side, no_wrap=heading != "class mix")
    for device in report["devices"]:
        table.add_row(*_row(device))
    console.print(table)
    console.print("nearest: nearest global prototype; ms: milliseconds to personalise; up, down: bytes over MQTT", style="dim")
    gain = 100 * (report["tailored_zacc"] - report["fedavg_zacc"])
    sentences = [
        f"Tailored against FedAvg: {gain:+.1f} points.",
        f"Training took {report['fedavg_train_seconds']:.1f} s for FedAvg and {report['train_seconds']:.1f} s for HyperFedZero,",
        f"whose networks have {report['parameters']:,} parameters and make a classifier of {report['classifier_parameters']:,}.",
    ]
    console.print(" ".join(sentences), highlight=False)
    console.print("The last step was these commands, side by side:", style="dim")
    for command in _last_step(report["commands"]):
        console.print(f"  {command}", soft_wrap=True, highlight=False, markup=False)
    console.print(f"Curves, accuracy per device and class mixes: {report['page']}", soft_wrap=True, highlight=False)
    console.print(f"Everything lies in {report['folder']}", soft_wrap=True, highlight=False)


def _last_step(commands: Sequence[str]) -> list[str]:
    """Return the coordinator's command and that of one device, as one would type them."""
    kinds = ("fedtailor coordinator prototypes ", "fedtailor edge run ")
    return [next(command for command in commands if command.startswith(kind)) for kind in kinds]


def _footers(report: dict[str, Any]) -> dict[str, str]:
    """Return the means for the table's foot."""
    nearest = [device["nearest_prototype_accuracy"] for device in report["devices"]]
    shares = {"FedAvg": report["fedavg_zacc"], "tailored": report["tailored_zacc"], "nearest": float(np.mean(nearest))}
    return {"device": "mean"} | {name: f"{share:.1%}" for name, share in shares.items()}


def _row(device: dict[str, Any]) -> list[str]:
    """Return one device's cells."""
    shown = list(device["class_mix"].items())[:SHOWN_CLASSES]
    mix = ", ".join(f"{name} {share:.0%}" for name, share in shown)
    shares = [f"{device[name]:.1%}" for name in ("fedavg_accuracy", "tailored_accuracy", "nearest_prototype_accuracy")]
    traffic = [f"{device[name]:,}" for name in ("bytes_up", "bytes_down")]
    return [device["id"], str(device["samples"]), mix, *shares, f"{device['personalize_ms']:.0f}", *traffic]
