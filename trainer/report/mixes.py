"""The class mix of each device as one stacked bar, once for each cut that the runs worked on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from trainer.data.picture import BAR_HEIGHT, BAR_WIDTH, ROW_HEIGHT, class_colour
from trainer.report.blocks import class_keys, folded, section
from trainer.report.comparison import Comparison
from trainer.report.devices import DeviceRecord
from trainer.report.drawing import CHARACTER_WIDTH, box, drawing, text
from trainer.report.markup import Markup, element, shortened
from trainer.report.records import Record

MOST_SEGMENTS = 12
MANY_DEVICES = 60
THIN_ROW, THIN_BAR = 5, 4
LONGEST_DEVICE = 24
ROOM_FOR_COUNT = 70


def mixes_section(comparison: Comparison) -> Markup:
    """Return the class mixes of each cut, the first one open."""
    cuts: dict[object, list[tuple[str, Record]]] = {}
    for name, record in comparison.named():
        mix = tuple((each.device, each.participates, each.class_counts) for each in record.devices)
        cuts.setdefault((record.config.task.classes, mix), []).append((name, record))
    parts: list[Markup] = []
    for runs in cuts.values():
        title = f"Seed {runs[0][1].config.seed}, {runs[0][1].config.data}: {', '.join(name for name, _ in runs)}"
        drawn = _cut(runs[0][1])
        parts.append(Markup(element("h3", title) + drawn) if not parts else folded(title, drawn))
    note = "Participants above, new devices below. Of participants the training samples are counted, of new devices the query samples."
    return section("Class mixes", element("p", note), *parts)


def _cut(record: Record) -> Markup:
    """Return the bars of one cut with their legend."""
    classes = record.config.task.classes
    occurring = [place for place in range(len(classes)) if any(each.class_counts[place] for each in record.devices)]
    return Markup(class_keys(classes, occurring) + mixes_drawing(record.devices, classes))


def mixes_drawing(devices: Sequence[DeviceRecord], classes: Sequence[str]) -> Markup:
    """Return one bar a device; many devices get thin bars without names.

    Args:
        devices: Rows in their order.
        classes: Class names in index order.
    """
    thin = len(devices) > MANY_DEVICES
    row_height, bar_height = (THIN_ROW, THIN_BAR) if thin else (ROW_HEIGHT, BAR_HEIGHT)
    names = [shortened(each.device, LONGEST_DEVICE) for each in devices]
    left = 8.0 if thin else 16 + CHARACTER_WIDTH * max((len(name) for name in names), default=0)
    parts, top = [], 4.0
    for place, each in enumerate(devices):
        if place and devices[place - 1].participates and not each.participates:
            top += row_height
        parts += _bar(each, classes, (left, top), bar_height, thin=thin)
        if not thin:
            parts += [text(4, top + 11, names[place]), text(left + BAR_WIDTH + 6, top + 11, f"{each.samples:,}", kind="tick")]
        top += row_height
    return drawing(left + BAR_WIDTH + ROOM_FOR_COUNT, top + 4, f"Class mixes of {len(devices)} devices", *parts)


def _bar(device: DeviceRecord, classes: Sequence[str], corner: tuple[float, float], height: float, *, thin: bool) -> list[Markup]:
    """Return a device's largest classes in index order, and the rest of them as one."""
    counts, total = device.class_counts, max(1, device.samples)
    shown = sorted(sorted((place for place in range(len(counts)) if counts[place]), key=lambda place: -counts[place])[:MOST_SEGMENTS])
    widths = [counts[place] / total * BAR_WIDTH for place in shown]
    parts = []
    for place, width, start in zip(shown, widths, accumulate(widths, initial=0.0), strict=False):
        title = [] if thin else [element("title", f"{classes[place]}: {counts[place]} ({counts[place] / total:.0%})")]
        parts.append(box(corner[0] + start, corner[1], width, height, *title, fill=class_colour(place)))
    rest = device.samples - sum(counts[place] for place in shown)
    if rest:
        title = [] if thin else [element("title", f"other classes: {rest} ({rest / total:.0%})")]
        parts.append(box(corner[0] + sum(widths), corner[1], rest / total * BAR_WIDTH, height, *title, class_="other"))
    return parts
