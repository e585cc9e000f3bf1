"""Checks of plain values from JSON, each in one word: what is of the wrong kind raises TypeError or ValueError."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object."""
    if not isinstance(value, dict):
        raise TypeError(f"an object was expected, not {value!r:.40}")
    return value


def number(value: Any, least: float = -math.inf, *, finite: bool = True) -> float:
    """Return a number of at least ``least``; NaN and infinity only where ``finite`` is false."""
    if type(value) not in (int, float):
        raise TypeError(f"a number was expected, not {value!r:.40}")
    result = float(value)
    if finite and not (math.isfinite(result) and result >= least):
        raise ValueError(f"a number of at least {least} was expected, not {result}")
    return result


def share(value: Any) -> float:
    """Return a number from 0 to 1, or NaN where nothing could be measured."""
    result = number(value, finite=False)
    if not (math.isnan(result) or 0 <= result <= 1):
        raise ValueError(f"a share from 0 to 1 was expected, not {result}")
    return result


def whole(value: Any) -> int:
    """Return a whole number that counts something."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise TypeError(f"a count was expected, not {value!r:.40}")
    return value
