"""A small vocabulary of SVG: scales with round ticks, lines, texts, and the frame of a chart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trainer.report.markup import Markup, element, joined

CHARACTER_WIDTH = 6.6
NICE_STEPS = (1, 2, 2.5, 5, 10)
Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """Values along one side of a chart.

    Attributes:
        low: Smallest value.
        high: Largest value.
        start: Where the smallest lies, in pixels.
        end: Where the largest lies.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return where a value lies; the middle, if there is only one value."""
        share = 0.5 if self.high <= self.low else (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        """Return round values, about so many of them."""
        step = round_step((self.high - self.low) / about)
        if step == 0:
            return [self.low]
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [min(self.high, max(self.low, place * step)) for place in range(first, last + 1)]


def round_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is not below ``least``; 0 for what is not positive."""
    if not least > 0:
        return 0
    power = 10.0 ** math.floor(math.log10(least))
    return next((nice * power for nice in NICE_STEPS if nice * power >= least * (1 - 1e-9)), 10 * power)


def drawing(width: float, height: float, label: str, *parts: str) -> Markup:
    """Return an SVG element.

    Args:
        width: Width in pixels.
        height: Height in pixels.
        label: What a screen reader says of it.
        parts: What it shows.
    """
    box = f"0 0 {width:g} {height:g}"
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", width=width, height=height, viewBox=box, role="img", aria_label=label)


def text(x: float, y: float, content: str, anchor: str = "start", kind: str | None = None, turned: bool = False) -> Markup:
    """Return a line of text, turned to read upwards if asked."""
    transform = f"rotate(-90 {x:.2f} {y:.2f})" if turned else None
    return element("text", content, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=kind, transform=transform)


def line(points: Iterable[Point], kind: str) -> Markup:
    """Return a line through points."""
    return element("polyline", points=_pairs(points), class_=f"line {kind}")


def area(points: Iterable[Point], kind: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return a filled area inside points."""
    return element("polygon", *children, points=_pairs(points), class_=kind, **attributes)


def box(x: float, y: float, width: float, height: float, *children: str, **attributes: str | float | None) -> Markup:
    """Return a rectangle."""
    return element("rect", *children, x=x, y=y, width=width, height=height, **attributes)


def frame(x: Scale, y: Scale, names: tuple[str, str], writers: tuple[Callable[[float], str], Callable[[float], str]]) -> Markup:
    """Return grid lines, ticks and names of both sides of a chart.

    Args:
        x: Scale of the lower side.
        y: Scale of the left side.
        names: What the sides show, lower side first.
        writers: How their values are written.
    """
    parts = [line([(x.start, y.at(tick)), (x.end, y.at(tick))], "grid") for tick in y.ticks()]
    parts += [text(x.start - 6, y.at(tick) + 4, writers[1](tick), "end", "tick") for tick in y.ticks()]
    parts += [text(x.at(tick), y.start + 16, writers[0](tick), "middle", "tick") for tick in x.ticks()]
    parts.append(line([(x.start, y.start), (x.end, y.start)], "axis"))
    parts.append(text((x.start + x.end) / 2, y.start + 34, names[0], "middle", "name"))
    parts.append(text(x.start, y.end - 8, names[1], "start", "name"))
    return joined(parts)


def _pairs(points: Iterable[Point]) -> str:
    """Return points as SVG writes them."""
    return " ".join(f"{round(x, 1):g},{round(y, 1):g}" for x, y in points)
