"""One round as the coordinator knows it; the journal keeps exactly this."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

Phase = Literal["collecting", "closed", "published"]
Answer = Literal["none", "taken", "declined"]


@dataclass(frozen=True)
class Asked:
    """A device that was asked.

    Attributes:
        attempt: The attempt that asked it last.
        base: SHA-256 of the state that it begins with.
        answer: What it said to the task: nothing yet, ``taken``, or ``declined``.
    """

    attempt: int
    base: str
    answer: Answer = "none"


@dataclass(frozen=True)
class OpenRound:
    """A round.

    Attributes:
        number: Round number.
        attempt: How often it has asked, from 0.
        opened: Seconds since 1970, UTC.
        deadline: When this attempt ends, likewise.
        phase: ``collecting``, ``closed`` (no update counts any more), ``published`` (its result is on disk).
        state: SHA-256 of the file with the server state that the round began with.
        asked: Device id -> what is known of the devices that were asked.
        counted: Device id -> sample count of the updates that count.
        result: SHA-256 of the file with the server state that it came to; None before it is published.
    """

    number: int
    attempt: int
    opened: float
    deadline: float
    phase: Phase
    state: str
    asked: dict[str, Asked] = field(default_factory=dict)
    counted: dict[str, int] = field(default_factory=dict)
    result: str | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether updates may still count."""
        return self.phase == "collecting"

    @property
    def awaited(self) -> tuple[str, ...]:
        """Return the devices whose updates may still come in this attempt, ascending."""
        return tuple(
            sorted(
                name
                for name, asked in self.asked.items()
                if asked.attempt == self.attempt and asked.answer != "declined" and name not in self.counted
            )
        )

    def with_count(self, device: str, samples: int) -> OpenRound:
        """Return the round with an update counted."""
        return replace(self, counted={**self.counted, device: samples})

    def with_answer(self, device: str, answer: Answer) -> OpenRound:
        """Return the round with what a device said to its task."""
        return replace(self, asked={**self.asked, device: replace(self.asked[device], answer=answer)})
