"""How long to wait before trying again: longer each time, and never in step with others."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

FIRST_SECONDS = 2.0
FACTOR = 1.6
LONGEST_SECONDS = 60.0
JITTER = 0.25


@dataclass
class Backoff:
    """Waits of 2 s x 1.6^k, at most 60 s, each a quarter longer or shorter by chance.

    Attributes:
        draw: Gives a number from 0 to 1; a seeded one makes a test repeatable.
        attempts: How often in vain since the last success.
    """

    draw: Callable[[], float] = field(default=random.random)
    attempts: int = 0

    def wait(self) -> float:
        """Return the seconds until the next attempt, and count it."""
        seconds = min(FIRST_SECONDS * FACTOR ** min(self.attempts, 64), LONGEST_SECONDS)
        self.attempts += 1
        return seconds * (1 - JITTER + 2 * JITTER * self.draw())

    def succeeded(self) -> None:
        """Begin anew."""
        self.attempts = 0
