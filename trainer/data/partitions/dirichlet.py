"""Clients with skewed class mixes: the usual per-class Dirichlet cut (Hsu, Qi and Brown, 2019)."""

from __future__ import annotations

import numpy as np

from trainer.data.dataset import Dataset
from trainer.data.partitions.base import Cut, IndexArray, check_enough, shares_of
from trainer.data.partitions.minimum import raise_to_minimum


def dirichlet_partition(dataset: Dataset, cut: Cut, generator: np.random.Generator) -> list[IndexArray]:
    """Return shares into which each class is cut in proportions of its own."""
    check_enough(len(dataset.labels), cut)
    whole = dirichlet_shares(dataset.labels, cut.clients, cut.concentration, generator)
    return raise_to_minimum(whole, cut.minimum)


def dirichlet_shares(labels: IndexArray, clients: int, concentration: float, generator: np.random.Generator) -> list[IndexArray]:
    """Return positions in ``labels`` (N,) for each client, shuffled; some may be empty."""
    shares: list[list[IndexArray]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        proportions = generator.dirichlet(np.full(clients, concentration))  # (M,)
        for share, piece in zip(shares, shares_of(members, proportions), strict=True):
            share.append(piece)
    return [generator.permutation(np.concatenate(share)).astype(np.int64) for share in shares]
