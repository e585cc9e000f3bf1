"""What this side wants to have, and when it asks for the offer again."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.backoff import Backoff


@dataclass
class Fetch:
    """Content that is wanted.

    Attributes:
        peer: Who has it.
        transfer: Its SHA-256.
        deadline: When to give up, on a clock that never goes back.
        backoff: Waits between requests.
        due: When to ask for the offer, on the same clock; infinity while chunks come.
    """

    peer: str
    transfer: str
    deadline: float
    backoff: Backoff
    due: float = -math.inf


@dataclass
class Fetching:
    """All that is wanted.

    Args:
        draw: Random numbers from 0 to 1, for the waits.
    """

    draw: Callable[[], float] = random.random
    _fetches: dict[tuple[str, str], Fetch] = field(default_factory=dict)

    def want(self, peer: str, transfer: str, deadline: float) -> None:
        """Want something; wanting it twice is wanting it once."""
        self._fetches.setdefault((peer, transfer), Fetch(peer, transfer, deadline, Backoff(self.draw)))

    def find(self, peer: str, transfer: str) -> Fetch | None:
        """Return what is known of something that is wanted."""
        return self._fetches.get((peer, transfer))

    def began(self, peer: str, transfer: str) -> None:
        """Note that it was offered, and that its chunks are asked for."""
        self._fetches[peer, transfer].due = math.inf

    def postpone(self, peer: str, transfer: str, now: float) -> None:
        """Ask for the offer later."""
        fetch = self._fetches[peer, transfer]
        fetch.due = now + fetch.backoff.wait()

    def forget(self, peer: str, transfer: str) -> None:
        """Want it no longer."""
        self._fetches.pop((peer, transfer), None)

    def requests(self, now: float) -> list[Fetch]:
        """Return what to ask for now, and wait for the answer."""
        due = [fetch for fetch in self._fetches.values() if fetch.due <= now < fetch.deadline]
        for fetch in due:
            fetch.due = now + fetch.backoff.wait()
        return due

    def expired(self, now: float) -> list[Fetch]:
        """Return what did not come in time, and want it no longer."""
        late = [fetch for fetch in self._fetches.values() if fetch.deadline <= now]
        for fetch in late:
            self.forget(fetch.peer, fetch.transfer)
        return late

    def restarted(self, now: float) -> None:
        """Ask again soon: the connection was lost."""
        for fetch in self._fetches.values():
            fetch.backoff.succeeded()
            fetch.due = fetch.due if math.isinf(fetch.due) else min(fetch.due, now + self.draw() / 2)

    @property
    def due(self) -> float:
        """Return when something is to be done."""
        return min((min(fetch.due, fetch.deadline) for fetch in self._fetches.values()), default=math.inf)
