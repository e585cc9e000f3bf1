"""Options behind a source's path: ``images:photos?size=64&mode=L``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from protocol.errors import DatasetError
from trainer.data.sources.base import LoadOptions

MAXIMUM_SIDE = 4096
MODES = ("L", "RGB")
_OPTIONS = re.compile(r"^(?P<path>.*)\?(?P<options>\w+=[^?]*)$")


def split_options(source: str) -> tuple[str, LoadOptions, frozenset[str]]:
    """Return a source without its options, the options, and the names of those given.

    Raises:
        DatasetError: An option is unknown or its value is wrong.
    """
    match = _OPTIONS.match(source)
    if match is None:
        return source, LoadOptions(), frozenset()
    values: dict[str, Any] = {}
    for word in match["options"].split("&"):
        name, _, text = word.partition("=")
        if name not in _READERS:
            raise DatasetError(f"option {name!r} of {match['path']} is unknown", expected=" or ".join(_READERS), got=word)
        values[name] = _READERS[name](text)
    return match["path"], LoadOptions(**values), frozenset(values)


def _size(text: str) -> tuple[int, int]:
    """Return width and height from ``64`` or ``64x48``."""
    match = re.fullmatch(r"(\d{1,4})(?:x(\d{1,4}))?", text)
    width, height = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not (1 <= width <= MAXIMUM_SIDE and 1 <= height <= MAXIMUM_SIDE):
        expected = f"a width of 1 to {MAXIMUM_SIDE} pixels such as 64, or width x height such as 64x48"
        raise DatasetError("option size was not understood", expected=expected, got=repr(text))
    return width, height


def _mode(text: str) -> str:
    """Return a mode that models can read."""
    if text not in MODES:
        raise DatasetError("option mode was not understood", expected=" or ".join(MODES), got=repr(text))
    return text


_READERS: Mapping[str, Callable[[str], object]] = {"size": _size, "mode": _mode, "label": str}
