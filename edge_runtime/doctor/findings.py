"""What a check finds: one line of the doctor's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "failed", "skipped"]


@dataclass(frozen=True)
class Finding:
    """One line.

    Attributes:
        check: What was looked at.
        verdict: ``ok``; ``note``: it works, but know this; ``failed``: the bundle cannot run; ``skipped``.
        found: What there is.
        advice: What to do, or nothing.
    """

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def passed(check: str, found: str) -> Finding:
    """Return a line about what is as it should be."""
    return Finding(check, "ok", found)
