"""When each waiting message is sent next: the oldest first, few at a time, again and again with longer waits."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.backoff import Backoff
from protocol.outbox import Place, Waiting

SPREAD_SECONDS = 0.5


@dataclass
class _Attempts:
    """What was tried with one message."""

    backoff: Backoff
    due: float = -math.inf


@dataclass
class Resending:
    """The schedule of an outbox.

    Args:
        draw: Random numbers from 0 to 1, for the waits.
    """

    draw: Callable[[], float] = random.random
    _attempts: dict[Place, _Attempts] = field(default_factory=dict)

    def due(self, waiting: list[Waiting], window: int, now: float) -> list[Waiting]:
        """Return the messages to send now; no more than ``window`` for one peer are ever without an answer."""
        return [entry for entry in _first(waiting, window) if self._of(entry.place).due <= now]

    def next_due(self, waiting: list[Waiting], window: int) -> float:
        """Return when the next message is due."""
        return min((self._of(entry.place).due for entry in _first(waiting, window)), default=math.inf)

    def tried(self, place: Place, now: float) -> None:
        """Note that a message was sent, or could not be."""
        attempts = self._of(place)
        attempts.due = now + attempts.backoff.wait()

    def postpone(self, place: Place, until: float) -> None:
        """Look at a message again later; it was not tried."""
        self._of(place).due = until

    def forget(self, place: Place) -> None:
        """Drop what is known of a message that was answered."""
        self._attempts.pop(place, None)

    def restarted(self, now: float) -> None:
        """Send everything again soon: the connection was lost, and with it perhaps messages or their answers."""
        for attempts in self._attempts.values():
            attempts.backoff.succeeded()
            attempts.due = min(attempts.due, now + SPREAD_SECONDS * self.draw())

    def _of(self, place: Place) -> _Attempts:
        """Return what was tried with a message."""
        return self._attempts.setdefault(place, _Attempts(Backoff(self.draw)))


def _first(waiting: list[Waiting], window: int) -> list[Waiting]:
    """Return the first messages for each peer: one that is away keeps only its own waiting."""
    counts: Counter[str] = Counter()
    first = []
    for entry in waiting:
        counts[entry.peer] += 1
        if counts[entry.peer] <= window:
            first.append(entry)
    return first
