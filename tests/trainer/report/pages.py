"""A page as a program reads it: its elements by html.parser, its drawings by an XML parser."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

VOID = {"meta"}
SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """Collects what a page holds and checks that its elements nest."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.content = content
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.values: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(content)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in {tag}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if tag == "data":
            self.values.append(dict(attrs)["value"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"{tag} was not open"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data + " "
        if any(tag in ("td", "th") for tag in self._open):
            self.rows[-1][-1] += data + ("|" if self._open[-1] == "data" else "")

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row and row[0] == first)

    def drawings(self) -> list[ET.Element]:
        return [ET.fromstring(found) for found in re.findall(r"<svg .*?</svg>", self.content, flags=re.DOTALL)]  # noqa: S314  # our own


def points_of(shape: ET.Element) -> list[tuple[float, float]]:
    """Return the outermost points of a shape; of a text, where it begins and about where it ends."""
    kind = shape.tag.removeprefix(SVG)
    numbers = {name: float(value) for name, value in shape.attrib.items() if name in {"x", "y", "width", "height", "cx", "cy", "r"}}
    if kind in ("polyline", "polygon"):
        pairs = [pair.split(",") for pair in shape.attrib["points"].split()]
        return [(float(x), float(y)) for x, y in pairs]
    if kind == "circle":
        x, y, r = numbers["cx"], numbers["cy"], numbers["r"]
        return [(x - r, y - r), (x + r, y + r)]
    if kind == "rect":
        return [(numbers["x"], numbers["y"]), (numbers["x"] + numbers["width"], numbers["y"] + numbers["height"])]
    if kind == "text":
        length = 5.6 * len(shape.text or "")
        before = {"start": 0.0, "middle": length / 2, "end": length}[shape.attrib.get("text-anchor", "start")]
        x, y = numbers["x"], numbers["y"]
        if "transform" in shape.attrib:
            return [(x, y + before), (x, y + before - length)]
        return [(x - before, y), (x - before + length, y - 8)]
    assert kind in ("svg", "title")
    return []
