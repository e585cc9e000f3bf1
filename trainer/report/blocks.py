"""Pieces of the page that several sections use: tables, legends, figures, folded parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from trainer.data.picture import LEGEND_CLASSES, LONGEST_NAME, class_colour
from trainer.report.comparison import Group
from trainer.report.markup import Markup, element, joined, shortened
from trainer.statistics import Interval


def section(title: str, *parts: str) -> Markup:
    """Return a part of the page under a heading."""
    return element("section", element("h2", title), *parts)


def row_of(parts: Iterable[str]) -> Markup:
    """Return parts beside each other, as far as there is room."""
    return element("div", *parts, class_="row")


def chart(drawn: str, caption: str) -> Markup:
    """Return a drawing with what it shows."""
    return element("figure", drawn, element("figcaption", caption))


def folded(title: str, *parts: str) -> Markup:
    """Return a part that opens on demand."""
    return element("details", element("summary", title), *parts)


def table(caption: str, heads: Sequence[Sequence[Markup]], rows: Iterable[Sequence[Markup]]) -> Markup:
    """Return a table in a box that scrolls sideways.

    Args:
        caption: What it shows.
        heads: Rows of heading cells.
        rows: Rows of cells.
    """
    head = element("thead", *(element("tr", *cells) for cells in heads))
    body = element("tbody", *(element("tr", *cells) for cells in rows))
    return element("div", element("table", element("caption", caption), head, body), class_="scroll")


def heading(content: str, kind: str | None = None) -> Markup:
    """Return the heading of a column."""
    return element("th", content, scope="col", class_=kind)


def row_heading(content: str) -> Markup:
    """Return the heading of a row."""
    return element("th", content, scope="row")


def cell(content: str, *, best: bool = False, left: bool = False) -> Markup:
    """Return a cell; the best of its column is marked and says so."""
    kinds = [name for name, holds in (("best", best), ("left", left)) if holds]
    return element("td", content, class_=" ".join(kinds) or None, title="best of its column" if best else None)


def interval_cell(interval: Interval, write: Callable[[float], str], *, marked: str | None = None, single: bool = False) -> Markup:
    """Return a cell with a mean and, under it, its interval.

    Args:
        interval: The mean and its interval.
        write: How people read numbers.
        marked: Why the cell is marked, if it is.
        single: Whether the interval is of one value and so says nothing.
    """
    ends = Markup() if single else element("small", f"{write(interval.low)} to {write(interval.high)}")
    return element("td", exact(interval.mean, write(interval.mean)), ends, class_="best" if marked else None, title=marked)


def exact(value: float, written: str) -> Markup:
    """Return a number as people read it that carries its exact value."""
    return element("data", written, value=repr(value))


def group_keys(groups: Iterable[Group]) -> Markup:
    """Return a legend of groups."""
    items = (element("li", element("i", class_=f"stroke {group.style}"), group.label) for group in groups)
    return element("ul", *items, class_="keys")


def class_keys(classes: Sequence[str], places: Iterable[int]) -> Markup:
    """Return a legend of classes.

    Args:
        classes: Class names in index order.
        places: Indices of the classes that occur.
    """
    wanted = sorted(set(places))
    items = [
        element("li", element("i", class_="patch", style=f"background:{class_colour(place)}"), shortened(classes[place], LONGEST_NAME))
        for place in wanted[:LEGEND_CLASSES]
    ]
    if len(wanted) > LEGEND_CLASSES:
        items.append(element("li", f"and {len(wanted) - LEGEND_CLASSES} more classes"))
    return element("ul", *items, class_="keys")


def sentences(lines: Iterable[str], kind: str | None = None) -> Markup:
    """Return each line as a paragraph."""
    return joined(element("p", each, class_=kind) for each in lines)
