"""What the demo shows: one row per new device, and the same as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

SHOWN_CLASSES = 3


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
    table = Table(title=f"New devices on {report['data']}: no label, no training, no torch", footer_style="bold", show_footer=True)
    footers = _footers(report)
    for heading in ("device", "samples", "class mix", "FedAvg", "tailored", "nearest prototype", "personalise", "up", "down"):
        table.add_column(heading, footers.get(heading, ""), justify="left" if heading in ("device", "class mix") else "right")
    for device in report["devices"]:
        table.add_row(*_row(device))
    console.print(table)
    gain = 100 * (report["tailored_zacc"] - report["fedavg_zacc"])
    console.print(
        f"Tailored against FedAvg: {gain:+.1f} points. Training: FedAvg {report['fedavg_train_seconds']:.1f} s, "
        f"HyperFedZero {report['train_seconds']:.1f} s with {report['parameters']:,} parameters for a classifier of "
        f"{report['classifier_parameters']:,}.",
        highlight=False,
    )
    console.print(f"Everything lies in {report['folder']}", soft_wrap=True, highlight=False)


def _footers(report: dict[str, Any]) -> dict[str, str]:
    """Return the means for the table's foot."""
    nearest = [device["nearest_prototype_accuracy"] for device in report["devices"]]
    return {
        "device": "mean",
        "FedAvg": f"{report['fedavg_zacc']:.1%}",
        "tailored": f"{report['tailored_zacc']:.1%}",
        "nearest prototype": f"{np.mean(nearest):.1%}",
    }


def _row(device: dict[str, Any]) -> list[str]:
    """Return one device's cells."""
    shown = list(device["class_mix"].items())[:SHOWN_CLASSES]
    mix = ", ".join(f"{name} {share:.0%}" for name, share in shown) + (", ..." if len(device["class_mix"]) > SHOWN_CLASSES else "")
    shares = [f"{device[name]:.1%}" for name in ("fedavg_accuracy", "tailored_accuracy", "nearest_prototype_accuracy")]
    traffic = [f"{device[name]:,} B" for name in ("bytes_up", "bytes_down")]
    return [device["id"], str(device["samples"]), mix, *shares, f"{device['personalize_ms']:.1f} ms", *traffic]
