"""Cutting a data set into clients with skewed class mixes.

The per-class Dirichlet cut is the usual one (Hsu, Qi and Brown, 2019). A minimum size is met by moving samples from
the largest client, so the cut always ends; drawing again until it fits may not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError

IndexArray = NDArray[np.int64]


def dirichlet_partition(
    labels: NDArray[np.int64], clients: int, concentration: float, minimum: int, generator: np.random.Generator
) -> list[IndexArray]:
    """Return the sample positions of each client: disjoint, together all of them, shuffled inside.

    Args:
        labels: Class indices, (N,) int64.
        clients: Number of clients.
        concentration: Dirichlet parameter; smaller is more skewed.
        minimum: Samples that each client has at least.
        generator: Source of the draws.

    Raises:
        DatasetError: There are too few samples for that minimum.
    """
    if clients * minimum > len(labels):
        raise DatasetError(
            "too few samples for so many devices",
            expected=f"at least {clients} x {minimum} = {clients * minimum} samples",
            got=str(len(labels)),
            hint="lower the number of devices or the minimum",
        )
    shares: list[list[IndexArray]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(clients, concentration))  # (M,)
        cuts = (np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        for share, piece in zip(shares, np.split(members, cuts), strict=True):
            share.append(piece)
    whole = [generator.permutation(np.concatenate(share)).astype(np.int64) for share in shares]
    return _raise_to_minimum(whole, minimum)


def _raise_to_minimum(shares: list[IndexArray], minimum: int) -> list[IndexArray]:
    """Move samples from the largest client to those below the minimum, the tail of its shuffled list first."""
    for needy in range(len(shares)):
        while len(shares[needy]) < minimum:
            donor = max(range(len(shares)), key=lambda client: len(shares[client]))
            moved = min(minimum - len(shares[needy]), max(1, (len(shares[donor]) - minimum) // 2))
            shares[needy] = np.concatenate([shares[needy], shares[donor][-moved:]])
            shares[donor] = shares[donor][:-moved]
    return shares
