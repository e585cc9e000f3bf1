"""Clients of different sizes and like class mixes: sizes drawn from a Dirichlet distribution."""

from __future__ import annotations

import numpy as np

from trainer.data.dataset import Dataset
from trainer.data.partitions.base import Cut, IndexArray, check_enough, shares_of
from trainer.data.partitions.minimum import raise_to_minimum


def quantity_partition(dataset: Dataset, cut: Cut, generator: np.random.Generator) -> list[IndexArray]:
    """Return shares of one shuffle whose sizes are skewed by ``cut.concentration``."""
    check_enough(len(dataset.labels), cut)
    proportions = generator.dirichlet(np.full(cut.clients, cut.concentration))  # (M,)
    return raise_to_minimum(shares_of(generator.permutation(len(dataset.labels)), proportions), cut.minimum)
