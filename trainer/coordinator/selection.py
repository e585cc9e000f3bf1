"""Who is asked in a round: a seeded share of the devices that are present."""

from __future__ import annotations

from collections.abc import Iterable

from edge_runtime.sampling import DrawKey
from trainer.coordinator.plan import RoundPlan


def select(plan: RoundPlan, number: int, attempt: int, present: Iterable[str], counted: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the devices to ask, ascending; none when too few are present.

    The same plan, round, attempt and devices give the same selection, in whatever order they came.

    Args:
        plan: How rounds are held.
        number: Round number.
        attempt: Which time the round asks, from 0.
        present: Devices that are there.
        counted: Devices whose updates the round has already; they are not asked again, and count as asked.
    """
    have = frozenset(counted)
    pool = sorted(set(present) - have)
    wanted = max(plan.minimum_devices, round(plan.fraction * (len(pool) + len(have)))) - len(have)
    if not pool or len(pool) + len(have) < plan.minimum_devices or wanted <= 0:
        return ()
    order = DrawKey(plan.seed, number, "coordinator").stream(f"selection-{attempt}").permutation(len(pool))
    return tuple(sorted(pool[place] for place in order[:wanted]))
