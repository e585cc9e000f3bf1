"""What happens next in a round, without I/O: time and facts come in, the next step comes out.

A round opens when enough devices are present, collects until enough updates are there or its deadline has passed, closes,
and is published. At a deadline with too few updates it asks again, other devices too, and keeps what it has: an update that
was acknowledged is never thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal

from trainer.coordinator.open_round import Asked, OpenRound
from trainer.coordinator.plan import RoundPlan
from trainer.coordinator.selection import select

Step = Literal["wait", "open", "ask-again", "close", "aggregate", "end"]


class RoundMachine:
    """Decides, and holds nothing that the journal does not hold.

    Args:
        plan: How rounds are held.
        first: Number of the first round.
    """

    def __init__(self, plan: RoundPlan, first: int) -> None:
        self.plan = plan
        self.first = first

    def next_step(self, current: OpenRound | None, now: float, *, paused: bool) -> Step:
        """Return what is to be done now.

        Args:
            current: The latest round, None before the first.
            now: Seconds since 1970, UTC.
            paused: Whether the operator paused: nothing opens and no deadline counts, but updates do.
        """
        if current is None or current.phase == "published":
            if self.number_after(current) >= self.first + self.plan.rounds:
                return "end"
            return "wait" if paused else "open"
        if current.phase == "closed":
            return "aggregate"
        if self._is_complete(current):
            return "close"
        if paused or now <= current.deadline:
            return "wait"
        return "close" if len(current.counted) >= self.plan.minimum_devices else "ask-again"

    def number_after(self, current: OpenRound | None) -> int:
        """Return the number of the round after one."""
        return self.first if current is None else current.number + 1

    def due(self, current: OpenRound | None) -> float:
        """Return when time alone makes something happen: its own timer, whatever devices do."""
        return current.deadline if current is not None and current.is_open else math.inf

    def open(self, number: int, state: str, present: Iterable[str], base_of: Callable[[str], str], now: float) -> OpenRound | None:
        """Return a new round, or None when too few devices are present.

        Args:
            number: Its number.
            state: SHA-256 of the server state.
            present: Devices that are there.
            base_of: Device id -> SHA-256 of what it begins with.
            now: Seconds since 1970, UTC.
        """
        chosen = select(self.plan, number, 0, present)
        if not chosen:
            return None
        asked = {device: Asked(0, base_of(device)) for device in chosen}
        return OpenRound(number, 0, now, now + self.plan.deadline_seconds, "collecting", state, asked)

    def ask_again(self, current: OpenRound, present: Iterable[str], base_of: Callable[[str], str], now: float) -> OpenRound | None:
        """Return the round in its next attempt, or None when too few devices are present to ever close it."""
        attempt = current.attempt + 1
        chosen = select(self.plan, current.number, attempt, present, current.counted)
        if not chosen:
            return None
        asked = current.asked | {device: Asked(attempt, base_of(device)) for device in chosen}  # who was slow may still send
        return replace(current, attempt=attempt, deadline=now + self.plan.deadline_seconds, asked=asked)

    def _is_complete(self, current: OpenRound) -> bool:
        """Tell whether waiting longer cannot or need not bring more."""
        if len(current.counted) < self.plan.minimum_devices:
            return False
        willing = len(current.counted) + len(current.awaited)
        return len(current.counted) >= self.plan.enough(willing)
