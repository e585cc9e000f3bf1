"""Checks that settings share: each names the setting, what would work, and what came."""

from __future__ import annotations

import math

from protocol.errors import InputError


def check_at_least(name: str, value: int, least: int) -> None:
    """Refuse a whole number below ``least``, or one beyond a hundred thousand."""
    if not least <= value <= 100_000:
        raise InputError(f"setting {name} is out of range", expected=f"{least} to 100000", got=value)


def check_between(name: str, value: float, low: float, high: float) -> None:
    """Refuse a number outside ``low`` to ``high``; NaN is outside."""
    if not low <= value <= high:
        raise InputError(f"setting {name} is out of range", expected=f"{low:g} to {high:g}", got=value)


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not positive and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"setting {name} is out of range", expected="a positive number", got=value)


def check_local_training(learning_rate: float, local_steps: int, batch_size: int, clip_norm: float) -> None:
    """Refuse settings of local SGD that cannot work."""
    check_positive("learning_rate", learning_rate)
    check_at_least("local_steps", local_steps, 1)
    check_at_least("batch_size", batch_size, 1)
    check_between("clip_norm", clip_norm, 0.0, 1e38)
