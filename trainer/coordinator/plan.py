"""What an operator decided about rounds: how many, who is asked, how long they may take, what an update may weigh."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.errors import InputError
from protocol.tensor_encodings import Encoding

MOST_SAMPLES = 10**6
DEFAULT_NORM_FACTOR = 10.0


@dataclass(frozen=True)
class RoundPlan:
    """How rounds are held.

    Attributes:
        rounds: Rounds to hold.
        fraction: Share of the devices that are present which a round asks.
        minimum_devices: Devices that must be present before a round opens, and updates without which none closes.
        deadline_seconds: Time for the updates of one attempt.
        seed: Seed of the selection and of every draw on devices.
        quorum: Share of the asked devices whose updates close the round before its deadline.
        largest_change: Most that an update may differ from the state it began with, as a joint norm; None for
            ``DEFAULT_NORM_FACTOR`` times the norm of that state plus 1.
        most_samples: Largest sample count that is believed.
        encoding: How updates travel.
    """

    rounds: int
    fraction: float = 1.0
    minimum_devices: int = 1
    deadline_seconds: float = 600.0
    seed: int = 0
    quorum: float = 1.0
    largest_change: float | None = None
    most_samples: int = MOST_SAMPLES
    encoding: Encoding = "float32"

    def __post_init__(self) -> None:
        """Refuse a plan that can never be carried out."""
        for name, share in (("fraction", self.fraction), ("quorum", self.quorum)):
            if not 0 < share <= 1:
                raise InputError(f"the {name} is out of range", expected="more than 0, at most 1", got=share)
        for name, count in (("rounds", self.rounds), ("minimum of devices", self.minimum_devices)):
            if count < 1:
                raise InputError(f"the number of {name} is out of range", expected="at least 1", got=count)
        if not (math.isfinite(self.deadline_seconds) and self.deadline_seconds > 0):
            raise InputError("the deadline is out of range", expected="seconds above 0", got=self.deadline_seconds)

    def enough(self, asked: int) -> int:
        """Return how many updates close a round that asked so many devices."""
        return max(self.minimum_devices, math.ceil(self.quorum * asked))

    def limit_of(self, base_norm: float) -> float:
        """Return the largest change of an update to a state with a norm."""
        return DEFAULT_NORM_FACTOR * (base_norm + 1.0) if self.largest_change is None else self.largest_change
