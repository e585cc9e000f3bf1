"""What the fields of messages have in common: digests, names, figures, and the reasons of an answer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from protocol.errors import MalformedMessageError

DIGEST = re.compile(r"[0-9a-f]{64}")
MAXIMUM_INTEGER = 2**53  # larger ones lose digits in other readers of JSON
MAXIMUM_FIGURES = 32
MAXIMUM_NAME = 64
MAXIMUM_REASON = 300

ReasonCode: TypeAlias = Literal[
    "accepted",
    "duplicate",
    "late",
    "stale",
    "foreign",
    "revoked",
    "unselected",
    "malformed",
    "not-finite",
    "wrong-shape",
    "over-norm",
    "too-large",
    "busy",
    "paused",
    "quota",
    "closed",
    "refused",
    "expired",
    "bad-digest",
    "too-slow",
    "unknown",
    "cancelled",
]
TRANSIENT: frozenset[ReasonCode] = frozenset({"busy", "paused", "quota", "too-slow"})  # the same may be taken later


class NotFiniteMessageError(MalformedMessageError):
    """A tensor of a message holds NaN or infinity."""


def require(holds: bool, what: str, got: object = None, expected: object = None) -> None:
    """Refuse a message's field.

    Raises:
        MalformedMessageError: The condition does not hold.
    """
    if not holds:
        raise MalformedMessageError(what, expected=expected, got=got)


def require_digest(name: str, value: str) -> None:
    """Refuse what is no SHA-256 in lower-case hexadecimal."""
    require(DIGEST.fullmatch(value) is not None, f"the {name} is no SHA-256", repr(value[:80]), "64 hexadecimal digits")


def require_count(name: str, value: int, least: int = 0, most: int = MAXIMUM_INTEGER) -> None:
    """Refuse an integer outside its range."""
    require(least <= value <= most, f"the {name} is impossible", value, f"{least} to {most}")


def require_time(name: str, value: float) -> None:
    """Refuse what cannot be seconds since 1970."""
    require(math.isfinite(value) and 0 <= value < 2**40, f"the {name} is no time", value, "seconds since 1970")


def require_text(name: str, value: str, most: int) -> None:
    """Refuse a text that is too long or would break a log line."""
    require(len(value) <= most and (value.isprintable() or not value), f"the {name} is no short line", repr(value[:80]))


def require_figures(name: str, figures: Mapping[str, float]) -> None:
    """Refuse too many named numbers, and ones that are not finite."""
    require(len(figures) <= MAXIMUM_FIGURES, f"too many {name}", len(figures), f"at most {MAXIMUM_FIGURES}")
    for key, value in figures.items():
        require_text(f"name of one of the {name}", key, MAXIMUM_NAME)
        require(math.isfinite(value), f"{name} {key} is not finite", value)
