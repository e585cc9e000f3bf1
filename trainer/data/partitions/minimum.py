"""Meeting a minimum size by moving samples from the largest clients, so that a cut always ends.

Drawing again until a cut fits may not end.
"""

from __future__ import annotations

import numpy as np

from trainer.data.partitions.base import IndexArray


def raise_to_minimum(shares: list[IndexArray], minimum: int, groups: IndexArray | None = None) -> list[IndexArray]:
    """Return the shares with samples moved to those below the minimum, the tail of the giver's shuffled list first.

    Args:
        shares: Sample positions of each client; together at least clients x minimum.
        minimum: Samples that each client has at least.
        groups: Class or domain of every sample, (N,) int64. When given, a client is first offered what it already
            holds, so that a client of few classes stays one where that is possible.
    """
    shares = list(shares)
    for needy in range(len(shares)):
        if groups is not None and len(shares[needy]) < minimum:
            _take_alike(shares, needy, minimum, groups)
        while len(shares[needy]) < minimum:
            donor = max(range(len(shares)), key=lambda client: len(shares[client]))
            moved = min(minimum - len(shares[needy]), max(1, (len(shares[donor]) - minimum) // 2))
            shares[needy] = np.concatenate([shares[needy], shares[donor][-moved:]])
            shares[donor] = shares[donor][:-moved]
    return shares


def _take_alike(shares: list[IndexArray], needy: int, minimum: int, groups: IndexArray) -> None:
    """Move samples of the groups that a client holds from clients above the minimum, the largest first.

    The giver keeps one sample of each of its groups.
    """
    wanted = np.unique(groups[shares[needy]])
    for donor in sorted(range(len(shares)), key=lambda client: -len(shares[client])):
        spare = min(minimum - len(shares[needy]), len(shares[donor]) - minimum)
        if spare <= 0:
            return
        given = groups[shares[donor]]  # (N,)
        _, kept = np.unique(given, return_index=True)
        alike = np.setdiff1d(np.flatnonzero(np.isin(given, wanted)), kept)[-spare:]
        shares[needy] = np.concatenate([shares[needy], shares[donor][alike]])
        shares[donor] = np.delete(shares[donor], alike)
