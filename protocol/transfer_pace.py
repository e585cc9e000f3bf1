"""How much a receiver asks for at once, from what it measures: enough to keep the link busy, little enough to lose little.

What is on its way when a connection breaks may come twice. So the receiver asks for a quarter of a second's worth at the
rate that it sees, or somewhat more than one round trip's worth where that is more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_CREDIT = 4
LEAST_CREDIT = 2
WORTH_SECONDS = 0.25
ROUND_TRIPS = 1.25
MEASURE_SECONDS = 0.25
LONGEST_PATIENCE = 60.0
TRIAL_SECONDS = 60.0


@dataclass
class Pace:
    """Rate and delay of one transfer.

    Attributes:
        most_chunks: Most chunks on their way at once.
        minimum_rate: Bytes a second, as a mean over a minute, below which a transfer is given up; 0 for never.
    """

    most_chunks: int = 16
    minimum_rate: float = 0.0
    _rate: float | None = None
    _delay: float = math.inf
    _gap: float = 0.0
    _asked_at: float | None = None
    _last: float = 0.0
    _window_start: float = 0.0
    _window_bytes: int = 0
    _trial_start: float = 0.0
    _trial_bytes: int = 0

    def start(self, now: float) -> None:
        """Begin to measure."""
        self._last = self._window_start = self._trial_start = now

    def asked(self, now: float, *, alone: bool) -> None:
        """Note that chunks were asked for; ``alone`` says that none were on their way, so the next one tells the round trip."""
        self._asked_at = now if alone else self._asked_at
        self._last = now  # what was lost and asked for again says nothing about how slow the link is

    def progressed(self, count: int, now: float) -> None:
        """Note that bytes came."""
        if self._asked_at is not None:
            self._delay, self._asked_at = min(self._delay, now - self._asked_at), None
        self._gap = max(0.9 * self._gap, now - self._last)
        self._last = now
        self._trial_bytes += count
        self._window_bytes += count
        elapsed = now - self._window_start
        if elapsed >= MEASURE_SECONDS:
            rate = self._window_bytes / elapsed
            self._rate = rate if self._rate is None else (self._rate + rate) / 2
            self._window_start, self._window_bytes = now, 0

    def credit(self, chunk_bytes: int) -> int:
        """Return how many chunks may be on their way."""
        if self._rate is None:
            return min(FIRST_CREDIT, self.most_chunks)
        delay = self._delay if math.isfinite(self._delay) else 0.0
        worth = self._rate * max(WORTH_SECONDS, ROUND_TRIPS * delay)
        return min(max(math.ceil(worth / chunk_bytes), LEAST_CREDIT), self.most_chunks)

    def patience(self, wait: float) -> float:
        """Return how long to wait for the next chunk: a slow link is no lost message."""
        return max(wait, min(3 * self._gap, LONGEST_PATIENCE))

    def is_too_slow(self, now: float) -> bool:
        """Tell, once a minute, whether too little came in the last one."""
        if now < self.due:
            return False
        slow = self._trial_bytes < self.minimum_rate * (now - self._trial_start)
        self._trial_start, self._trial_bytes = now, 0
        return slow

    @property
    def due(self) -> float:
        """Return when the rate is judged next."""
        return self._trial_start + TRIAL_SECONDS if self.minimum_rate > 0 else math.inf
