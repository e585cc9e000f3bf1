"""The figures that runs are compared by: where each is read, how it is written, and which way is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.report.records import Record

NOTHING = "–"
USES = {"nothing": "nothing", "samples": "unlabelled samples", "labels": "labelled samples"}


@dataclass(frozen=True, eq=False)
class Figure:
    """One column of the tables.

    Attributes:
        name: Its name in JSON.
        heading: What people read.
        read: Its value in a run.
        write: The value as people read it.
        more_is_better: Which way is better.
    """

    name: str
    heading: str
    read: Callable[[Record], float]
    write: Callable[[float], str]
    more_is_better: bool

    def best(self, values: Sequence[float]) -> float | None:
        """Return the best value, or None where there is nothing to compare or all are alike."""
        known = [value for value in values if not math.isnan(value)]
        if len(set(known)) < 2:
            return None
        return max(known) if self.more_is_better else min(known)


def percent(value: float) -> str:
    """Return a share in percent."""
    return NOTHING if math.isnan(value) else f"{value:.1%}"


def points(value: float) -> str:
    """Return a difference of two shares in percentage points."""
    return NOTHING if math.isnan(value) else f"{100 * value:+.1f}"


def megabytes(value: float) -> str:
    """Return bytes in MB, three digits of them."""
    return rounded(value / 1e6)


def rounded(value: float) -> str:
    """Return a number with about three digits."""
    if math.isnan(value):
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def count(value: float) -> str:
    """Return a whole number, thousands apart."""
    return f"{value:,.0f}"


def _accuracy(name: str, heading: str, *, corrected: bool) -> Figure:
    """Return the figure of one accuracy."""

    def read(record: Record) -> float:
        value: float = getattr(record.shifted if corrected else record.plain, name)
        return value

    return Figure(f"shifted_{name}" if corrected else name, heading, read, percent, more_is_better=True)


def _cost(name: str, heading: str, write: Callable[[float], str]) -> Figure:
    """Return the figure of one cost."""
    return Figure(name, heading, lambda record: record.costs[name], write, more_is_better=False)


_HEADINGS = {"gacc": "gACC", "pacc": "pACC", "zacc": "zACC", "worst_tenth": "worst tenth"}
PLAIN = tuple(_accuracy(name, heading, corrected=False) for name, heading in _HEADINGS.items())
CORRECTED = tuple(_accuracy(name, heading, corrected=True) for name, heading in _HEADINGS.items())
COSTS = (
    _cost("parameters", "parameters", count),
    _cost("bytes_up", "MB up", megabytes),
    _cost("bytes_down", "MB down", megabytes),
    _cost("train_seconds", "seconds", rounded),
)
FIGURES = (*PLAIN, *CORRECTED, *COSTS)
