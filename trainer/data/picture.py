"""A picture of a cut: one stacked bar of class counts a device, as SVG that needs nothing else."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from itertools import accumulate
from xml.sax.saxutils import escape

from trainer.data.description import DeviceDescription

BAR_WIDTH = 520
BAR_HEIGHT = 14
ROW_HEIGHT = 20
MARGIN = 16
HEADING_HEIGHT = 28
CHARACTER_WIDTH = 7.5
LEGEND_CLASSES = 20
LEGEND_COLUMN = 170
LONGEST_NAME = 20
STYLE = "text{font:12px sans-serif;fill:#333}.title{font-size:14px;font-weight:bold}"
BACKGROUND = "#fff"


def partition_picture(devices: Sequence[DeviceDescription], classes: Sequence[str], title: str = "Classes of each device") -> str:
    """Return an SVG document.

    Args:
        devices: Rows in their order; see ``describe``.
        classes: Class names in index order, at least as many as were counted.
        title: Heading.
    """
    left = MARGIN + CHARACTER_WIDTH * max((len(each.device) for each in devices), default=0) + 8
    longest = max((sum(each.class_counts) for each in devices), default=0) or 1
    top = MARGIN + HEADING_HEIGHT
    parts = [_text(MARGIN, MARGIN + 12, title, "title")]
    for row, each in enumerate(devices):
        parts += _bar(each, classes, left, top + row * ROW_HEIGHT, BAR_WIDTH / longest)
    legend, legend_height = _legend(classes, top + len(devices) * ROW_HEIGHT + 10)
    width, height = left + BAR_WIDTH + 60 + MARGIN, top + len(devices) * ROW_HEIGHT + 10 + legend_height + MARGIN
    frame = f'<rect width="{width:g}" height="{height:g}" fill="{BACKGROUND}"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", frame, *parts, *legend, "</svg>\n"])


def _bar(device: DeviceDescription, classes: Sequence[str], left: float, top: float, scale: float) -> list[str]:
    """Return a device's name, its bar and its number of counted samples."""
    counts = device.class_counts
    parts = [_text(MARGIN, top + 11, device.device)]
    for place, (count, start) in enumerate(zip(counts, accumulate(counts, initial=0), strict=False)):
        if count:
            box = f'x="{left + start * scale:.2f}" y="{top:g}" width="{count * scale:.2f}" height="{BAR_HEIGHT}"'
            parts.append(f'<rect {box} fill="{class_colour(place)}"><title>{escape(classes[place])}: {count}</title></rect>')
    return [*parts, _text(left + sum(counts) * scale + 6, top + 11, f"{sum(counts)}")]


def _legend(classes: Sequence[str], top: float) -> tuple[list[str], float]:
    """Return the first classes with their colours, and the height that they take."""
    columns = 4
    parts = []
    for place, name in enumerate(classes[:LEGEND_CLASSES]):
        x, y = MARGIN + place % columns * LEGEND_COLUMN, top + place // columns * ROW_HEIGHT
        parts.append(f'<rect x="{x}" y="{y:g}" width="12" height="12" fill="{class_colour(place)}"/>')
        parts.append(_text(x + 18, y + 10, name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"))
    rows = -(-min(len(classes), LEGEND_CLASSES) // columns)
    if len(classes) > LEGEND_CLASSES:
        parts.append(_text(MARGIN, top + rows * ROW_HEIGHT + 10, f"and {len(classes) - LEGEND_CLASSES} more classes"))
        rows += 1
    return parts, rows * ROW_HEIGHT


def class_colour(place: int) -> str:
    """Return a class's colour: hues a golden ratio apart, in three shades, so that neighbours differ."""
    red, green, blue = colorsys.hls_to_rgb(place * 0.618034 % 1, (0.45, 0.6, 0.72)[place % 3], 0.6)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def _text(x: float, y: float, content: str, kind: str = "") -> str:
    """Return one line of text."""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{style}>{escape(content)}</text>'
