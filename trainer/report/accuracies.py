"""Accuracy device by device: sorted curves of each run, and all values in a table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainer.report.blocks import cell, chart, exact, folded, group_keys, heading, row_heading, row_of, section, table
from trainer.report.comparison import Comparison, Group
from trainer.report.drawing import Point, Scale, drawing, frame, line
from trainer.report.figures import NOTHING, percent
from trainer.report.markup import Markup, element
from trainer.report.records import Record

WIDTH, HEIGHT = 540, 280
MOST_MARKS = 40
KINDS = {"new_devices": "new devices", "participants": "participants"}


def accuracies_section(comparison: Comparison) -> Markup:
    """Return sorted accuracies of new devices and of participants."""
    charts = [chart(_drawn(comparison, kind), f"Accuracy of {name}, each line one run, worst device first") for kind, name in KINDS.items()]
    values = folded("All values", *(_table(comparison, kind) for kind in KINDS))
    return section("Device by device", group_keys(comparison.groups), row_of(charts), values)


def _of(record: Record, kind: str) -> Mapping[str, float]:
    """Return the known accuracies of one kind of devices."""
    found: Mapping[str, float] = getattr(record.plain, kind)
    return {device: value for device, value in found.items() if not np.isnan(value)}


def _drawn(comparison: Comparison, kind: str) -> Markup:
    """Return the sorted accuracies of one kind of devices."""
    runs = [(group, record) for group in comparison.groups for record in group.records if _of(record, kind)]
    x, y = Scale(0, 1, 56, WIDTH - 24), Scale(0, 1, HEIGHT - 46, 28)
    parts = [frame(x, y, (f"share of {KINDS[kind]}", "accuracy"), ("{:.0%}".format, "{:.0%}".format))]
    parts += [_sorted_line(group, _of(record, kind), x, y) for group, record in runs]
    ranges = [f"{group.label} from {min(_of(each, kind).values()):.0%} to {max(_of(each, kind).values()):.0%}" for group, each in runs]
    return drawing(WIDTH, HEIGHT, f"Sorted accuracies of {KINDS[kind]}: {'; '.join(ranges)}", *parts)


def _sorted_line(group: Group, accuracies: Mapping[str, float], x: Scale, y: Scale) -> Markup:
    """Return a run's accuracies in ascending order, each device marked where there are few."""
    ordered = sorted(accuracies.items(), key=lambda item: (item[1], item[0]))
    places: list[Point] = [(x.at((rank + 0.5) / len(ordered)), y.at(value)) for rank, (_, value) in enumerate(ordered)]
    ends = [(x.start, places[0][1]), (x.end, places[-1][1])]
    drawn = line([ends[0], *places, ends[1]], f"thin {group.style}")
    if len(ordered) > MOST_MARKS:
        return drawn
    marks = [
        element("circle", element("title", f"{group.label}: {device} {value:.1%}"), cx=across, cy=up, r=3.0, class_=f"fill {group.style}")
        for (device, value), (across, up) in zip(ordered, places, strict=True)
    ]
    return Markup(drawn + "".join(marks))


def _table(comparison: Comparison, kind: str) -> Markup:
    """Return one row a device, one column a run."""
    devices = sorted({device for record in comparison.records for device in getattr(record.plain, kind)})
    heads = [[heading("device", "left"), *(heading(name) for name in comparison.names)]]
    rows = [[row_heading(device), *(_value(record, kind, device) for record in comparison.records)] for device in devices]
    return table(f"Accuracy of {KINDS[kind]}, as it is", heads, rows)


def _value(record: Record, kind: str, device: str) -> Markup:
    """Return one device's accuracy in one run."""
    accuracies: Mapping[str, float] = getattr(record.plain, kind)
    return cell(exact(accuracies[device], percent(accuracies[device])) if device in accuracies else NOTHING)
