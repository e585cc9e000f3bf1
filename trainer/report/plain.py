"""The report's numbers as plain values, for programs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from trainer.report.comparison import Comparison, Group
from trainer.report.embeddings import collapse_sentence
from trainer.report.figures import CORRECTED, FIGURES, PLAIN
from trainer.report.records import Record
from trainer.statistics import Interval


def runs_as_values(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one object a run; what could not be measured is None."""
    labels = {id(record): group.label for group in comparison.groups for record in group.records}
    return [_run(name, record, labels.get(id(record))) for name, record in comparison.named()]


def summary_as_values(comparison: Comparison) -> dict[str, Any]:
    """Return means over seeds and differences to the first method, by method."""
    return {group.label: _group(comparison, group) for group in comparison.groups}


def _run(name: str, record: Record, label: str | None) -> dict[str, Any]:
    """Return one run; ``group`` is None if it repeats another and counts for no mean."""
    config = record.config
    about = {"run": str(record.path), "name": name, "group": label, "method": config.method, "seed": config.seed, "rounds": config.rounds}
    figures = {figure.name: _finite(figure.read(record)) for figure in FIGURES}
    health = None if record.health is None else {key: _finite(value) for key, value in dataclasses.asdict(record.health).items()}
    warning = None if record.health is None else collapse_sentence(record.health)
    return about | {
        "new_device_uses": record.new_device_uses,
        "calibration": record.calibration,
        **figures,
        "embedding_health": health,
        "warning": warning,
    }


def _group(comparison: Comparison, group: Group) -> dict[str, Any]:
    """Return one method over its seeds."""
    first, common = comparison.groups[0], comparison.common_seeds(group)
    differences = {each.name: _interval(group.difference(each, first)) for each in (*PLAIN, *CORRECTED)} if common else None
    return {
        "seeds": [record.config.seed for record in group.records],
        "means": {figure.name: _interval(group.interval(figure)) for figure in FIGURES},
        "differences": None if differences is None else {"to": first.label, "seeds": common, **differences},
    }


def _interval(interval: Interval) -> dict[str, float | None]:
    """Return a mean and its interval by name."""
    return {name: _finite(value) for name, value in interval._asdict().items()}


def _finite(value: float) -> float | None:
    """Return a number that JSON knows, or None."""
    return value if math.isfinite(value) else None
