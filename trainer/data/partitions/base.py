"""What every partition is: a function from a data set and a cut's numbers to disjoint shares that cover everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset

IndexArray = NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """Numbers of a cut; a partition reads those it needs.

    Attributes:
        clients: Number of clients.
        minimum: Samples that each client has at least.
        concentration: Dirichlet parameter; smaller is more skewed.
        classes_per_client: Different classes that one client holds.
        participants: How many of the clients, the first ones, take part in training; all when 0.
        training_domains: How many of the domains, the first ones, participants come from; all when 0.
    """

    clients: int
    minimum: int
    concentration: float
    classes_per_client: int
    participants: int = 0
    training_domains: int = 0


# Returns the sample positions of each client: disjoint, together all of them, shuffled inside.
Partition = Callable[[Dataset, Cut, np.random.Generator], list[IndexArray]]


def check_enough(samples: int, cut: Cut) -> None:
    """Refuse a minimum that cannot be met.

    Raises:
        DatasetError: There are too few samples for that minimum.
    """
    if cut.clients * cut.minimum > samples:
        raise DatasetError(
            "too few samples for so many devices",
            expected=f"at least {cut.clients} x {cut.minimum} = {cut.clients * cut.minimum} samples",
            got=str(samples),
            hint="lower the number of devices or the minimum",
        )


def shares_of(members: IndexArray, proportions: NDArray[np.float64]) -> list[IndexArray]:
    """Return consecutive pieces of ``members`` (N,) in these proportions (M,), which add up to one."""
    cuts = (np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)  # (M - 1,)
    return np.split(members, cuts)
