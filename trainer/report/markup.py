"""Elements of HTML and SVG from plain values: whatever is text is escaped, so no name from a run can become markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# What XML 1.0 cannot hold: control characters, halves of surrogate pairs, two non-characters.
UNWRITABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """HTML or SVG that is ready to be written."""

    __slots__ = ()


def escaped(content: str) -> Markup:
    """Return text as markup, or markup as it is."""
    return content if isinstance(content, Markup) else Markup(html.escape(UNWRITABLE.sub("\ufffd", content)))


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element.

    Args:
        tag: Its name.
        children: Markup, or text that is escaped.
        attributes: ``class_`` is ``class``, ``text_anchor`` is ``text-anchor``; None leaves one out.
    """
    given = "".join(f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"' for name, value in attributes.items() if value is not None)
    return Markup(f"<{tag}{given}>{joined(children)}</{tag}>")


def joined(parts: Iterable[str], between: str = "") -> Markup:
    """Return parts one after the other, text among them escaped."""
    return Markup(escaped(between).join(escaped(part) for part in parts))


def shortened(text: str, length: int) -> str:
    """Return text of at most so many characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _value(value: str | float) -> str:
    """Return an attribute's value; numbers keep two decimals."""
    return escaped(value) if isinstance(value, str) else f"{round(value, 2):.10g}"
