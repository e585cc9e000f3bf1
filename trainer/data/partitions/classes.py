"""A few classes for each client: k of them, in unequal shares (pFedHN: Shamsian et al., 2021).

Classes are handed out so that each is held about equally often. The holders of a class share it in proportions drawn
from 0.4 to 0.6 and normalised.
"""

from __future__ import annotations

import numpy as np

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.partitions.base import Cut, IndexArray, check_enough, shares_of
from trainer.data.partitions.minimum import raise_to_minimum

LOWEST_WEIGHT, HIGHEST_WEIGHT = 0.4, 0.6


def classes_partition(dataset: Dataset, cut: Cut, generator: np.random.Generator) -> list[IndexArray]:
    """Return shares with samples of ``cut.classes_per_client`` classes each.

    Only where a minimum cannot be met from a client's own classes does it get samples of others.

    Raises:
        DatasetError: A client cannot hold so many classes, or some class would have no holder.
    """
    check_enough(len(dataset.labels), cut)
    present = np.unique(dataset.labels)  # (C,)
    _check_classes(len(present), cut)
    held = _hand_out(len(present), cut, generator)  # (M, C)
    shares: list[list[IndexArray]] = [[] for _ in range(cut.clients)]
    for place, label in enumerate(present):
        holders = np.flatnonzero(held[:, place])
        weights = generator.uniform(LOWEST_WEIGHT, HIGHEST_WEIGHT, len(holders))
        members = generator.permutation(np.flatnonzero(dataset.labels == label))
        for holder, piece in zip(holders, shares_of(members, weights / weights.sum()), strict=True):
            shares[holder].append(piece)
    whole = [generator.permutation(np.concatenate(share)) for share in shares]
    return raise_to_minimum(whole, cut.minimum, dataset.labels)


def _hand_out(classes: int, cut: Cut, generator: np.random.Generator) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Return which client holds which class, (M, C): each client takes the least held ones, ties at random."""
    held = np.zeros((cut.clients, classes), np.bool_)
    for client in range(cut.clients):
        order = np.lexsort((generator.random(classes), held.sum(axis=0)))  # (C,)
        held[client, order[: cut.classes_per_client]] = True
    return held


def _check_classes(classes: int, cut: Cut) -> None:
    """Refuse a number of classes that leaves a class over or that no client can hold."""
    if cut.classes_per_client > classes:
        expected = f"classes_per_client of at most {classes}"
        raise DatasetError("the data set has too few classes", expected=expected, got=cut.classes_per_client)
    if cut.clients * cut.classes_per_client < classes:
        raise DatasetError(
            "some classes would belong to no device",
            expected=f"devices x classes_per_client of at least {classes}",
            got=f"{cut.clients} x {cut.classes_per_client}",
            hint="raise one of the two",
        )
