"""Every client alike: one shuffle, equal shares."""

from __future__ import annotations

import numpy as np

from trainer.data.dataset import Dataset
from trainer.data.partitions.base import Cut, IndexArray, check_enough


def iid_partition(dataset: Dataset, cut: Cut, generator: np.random.Generator) -> list[IndexArray]:
    """Return shares of equal size, give or take one sample."""
    check_enough(len(dataset.labels), cut)
    return np.array_split(generator.permutation(len(dataset.labels)), cut.clients)
