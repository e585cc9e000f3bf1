"""What training cost: bytes and seconds as bars, with whiskers over seeds."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.report.blocks import chart, row_of, section
from trainer.report.comparison import Comparison, Group
from trainer.report.drawing import CHARACTER_WIDTH, Scale, box, drawing, line, text
from trainer.report.figures import COSTS, Figure
from trainer.report.markup import Markup, element, shortened

BAR_ROOM = 230
VALUE_ROOM = 64
ROW_HEIGHT, BAR_HEIGHT = 26, 16
LONGEST_LABEL = 26
SHOWN = ("bytes_up", "bytes_down", "train_seconds")
CAPTIONS = {
    "bytes_up": "MB that all devices sent during training",
    "bytes_down": "MB that all devices received during training",
    "train_seconds": "Seconds of training on the machine that simulated the devices",
}


def costs_section(comparison: Comparison) -> Markup:
    """Return a bar chart for each cost."""
    figures = [figure for figure in COSTS if figure.name in SHOWN]
    charts = [chart(_bars(comparison.groups, figure), CAPTIONS[figure.name]) for figure in figures]
    return section("Bytes and seconds", row_of(charts))


def _bars(groups: Sequence[Group], figure: Figure) -> Markup:
    """Return one bar a group: the mean over its seeds."""
    intervals = [group.interval(figure) for group in groups]
    names = [shortened(group.label, LONGEST_LABEL) for group in groups]
    left = 14 + CHARACTER_WIDTH * max(map(len, names))
    scale = Scale(0, max(each.high for each in intervals) or 1.0, left, left + BAR_ROOM)
    parts = []
    for place, (group, interval) in enumerate(zip(groups, intervals, strict=True)):
        top, middle = 4 + place * ROW_HEIGHT, 4 + place * ROW_HEIGHT + BAR_HEIGHT / 2
        end = scale.at(interval.mean)
        title = element("title", f"{group.label}: {figure.write(interval.mean)} {figure.heading}")
        parts.append(text(left - 6, middle + 4, names[place], "end"))
        parts.append(box(left, top, end - left, BAR_HEIGHT, title, class_=f"fill {group.style}"))
        if interval.low < interval.high:
            parts.append(line([(scale.at(interval.low), middle), (scale.at(interval.high), middle)], "whisker"))
        parts.append(text(max(end, scale.at(interval.high)) + 6, middle + 4, figure.write(interval.mean), kind="tick"))
    values = "; ".join(f"{group.label} {figure.write(each.mean)}" for group, each in zip(groups, intervals, strict=True))
    return drawing(left + BAR_ROOM + VALUE_ROOM, 8 + len(groups) * ROW_HEIGHT, f"{CAPTIONS[figure.name]}: {values}", *parts)
