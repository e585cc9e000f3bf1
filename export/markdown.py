"""Markdown that shows a text as it is, whoever chose the text: names of classes and data come from users' folders and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}
MARKS = frozenset("\\`*_{}[]#|~$:@^")  # emphasis, code, links, tables, formulas, and what turns a bare address into a link

BARE_ADDRESS = re.compile(r"(www)\.", re.IGNORECASE)


def escape(text: object) -> str:
    """Return a text that Markdown and HTML readers show literally, on one line; what cannot be printed is written as its number."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in str(text))
    marked = "".join(ENTITIES.get(each, f"\\{each}" if each in MARKS else each) for each in shown)
    return BARE_ADDRESS.sub(r"\1\.", marked)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table; cells are escaped, the head is ours."""
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return lines + [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]
