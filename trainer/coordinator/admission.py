"""Which updates count: each is taken whole or refused whole, with a code for programs and a sentence for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.message_checks import ReasonCode
from trainer.coordinator.open_round import OpenRound

Tree = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Verdict:
    """An answer to a message.

    Attributes:
        code: ``accepted``, or why not.
        reason: The same in one sentence; empty when accepted.
    """

    code: ReasonCode
    reason: str = ""

    @property
    def accepted(self) -> bool:
        """Tell whether the message counts."""
        return self.code == "accepted"


ACCEPTED = Verdict("accepted")


@dataclass(frozen=True)
class Claim:
    """What an update says about itself.

    Attributes:
        device: Who sent it.
        round: Round number.
        base: SHA-256 of the state that the work began with; None when it began with nothing.
        sample_count: Samples that it used.
    """

    device: str
    round: int
    base: str | None
    sample_count: int


def judge_claim(claim: Claim, current: OpenRound | None, participants: frozenset[str], now: float) -> Verdict:
    """Say whether a device may send an update now, before its numbers are looked at.

    Args:
        claim: What the update says.
        current: The latest round, open or closed; None before the first.
        participants: Devices that take part in the federation's rounds.
        now: Seconds since 1970, UTC.
    """
    if claim.device not in participants:
        return Verdict("foreign", f"{claim.device} takes no part in these rounds")
    if current is None or claim.round > current.number:
        return Verdict("stale", f"round {claim.round} has not been opened")
    if claim.round < current.number:
        return Verdict("late", f"round {claim.round} is over, round {current.number} is next; wait for its task")
    if claim.device not in current.asked:
        return Verdict("unselected", f"{claim.device} was not asked in round {claim.round}")
    if claim.device in current.counted:
        return Verdict("duplicate", f"an update of {claim.device} counts in round {claim.round} already")
    if not current.is_open or now > current.deadline:
        return Verdict("late", f"round {claim.round} takes no more updates")
    if claim.base is not None and claim.base != current.asked[claim.device].base:
        return Verdict("stale", f"the training began with {claim.base[:16]}, round {claim.round} with another state")
    return ACCEPTED


def judge_numbers(values: Tree, base: Tree, expected: Mapping[str, tuple[int, ...]], limit: float) -> Verdict:
    """Say whether an update's numbers may count.

    Args:
        values: Name -> tensor, as they came.
        base: The state that the training began with; what it has no tensor for is measured from zero.
        expected: Name -> shape of what goes up.
        limit: Largest joint norm of the change.
    """
    if values.keys() != expected.keys():
        wrong = min(values.keys() ^ expected.keys())
        return Verdict("wrong-shape", f"tensor {wrong[:80]!r} is {'unknown' if wrong in values else 'missing'}")
    for name, shape in expected.items():
        if values[name].shape != shape:
            return Verdict("wrong-shape", f"tensor {name!r} has shape {values[name].shape}, expected {shape}")
    for name, tensor in values.items():
        if not np.isfinite(tensor).all():
            return Verdict("not-finite", f"tensor {name!r} holds NaN or infinity")
    norm = change_norm(values, base)
    if not norm <= limit:
        return Verdict("over-norm", f"the update changes the state by {norm:.4g}, at most {limit:.4g} is believed")
    return ACCEPTED


def change_norm(values: Tree, base: Tree) -> float:
    """Return the joint Euclidean norm of a change; in float64, so that it does not overflow."""
    total = 0.0
    for name, tensor in values.items():
        wide = tensor.astype(np.float64)
        difference = wide - base[name] if name in base and base[name].shape == tensor.shape else wide
        total += float(np.vdot(difference, difference))
    return math.sqrt(total)
