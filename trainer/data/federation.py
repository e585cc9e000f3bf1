"""Participants and new devices made from one data set, with the new devices' labels kept apart.

Training and personalization see ``FederatedData``; only the evaluation sees ``Answers``. Every client keeps 80 % of its
share for training (or as unlabelled support) and 20 % for testing (or as query).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.dataset import Dataset
from trainer.data.partition import IndexArray, dirichlet_partition

Samples = NDArray[np.generic]
Labels = NDArray[np.int64]
TRAINING_SHARE = 0.8


@dataclass(frozen=True)
class SplitSettings:
    """How a data set becomes devices.

    Attributes:
        participants: Clients that take part in training.
        new_devices: Clients held out whole.
        concentration: Dirichlet parameter of the class mixes.
        minimum_samples: Samples that each client has at least.
        support_size: Unlabelled samples of a new device used for personalization, at most; None for all it has.
        seed: Seed of the cut.
    """

    participants: int
    new_devices: int
    concentration: float
    minimum_samples: int
    support_size: int | None
    seed: int


@dataclass(frozen=True, eq=False)
class Participant:
    """A client that takes part: samples (N, *shape) and labels (N,) for training and for testing."""

    device: str
    samples: Samples
    labels: Labels
    test_samples: Samples
    test_labels: Labels


@dataclass(frozen=True, eq=False)
class NewDevice:
    """A client that never took part: unlabelled support (N, *shape) and query (Q, *shape), no labels."""

    device: str
    support: Samples
    query: Samples


@dataclass(frozen=True, eq=False)
class Answers:
    """Labels of the new devices' query sets by device id, (Q,) int64 each: for scoring only."""

    query_labels: Mapping[str, Labels]


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What training and personalization may see."""

    participants: tuple[Participant, ...]
    new_devices: tuple[NewDevice, ...]


def split_dataset(dataset: Dataset, settings: SplitSettings) -> tuple[FederatedData, Answers]:
    """Return the devices, and apart from them the answers.

    Raises:
        DatasetError: The data set is too small for these settings.
    """
    generator = np.random.Generator(np.random.Philox(key=np.uint64(settings.seed), counter=[0, 0, 0, 1]))
    clients = settings.participants + settings.new_devices
    shares = dirichlet_partition(dataset.labels, clients, settings.concentration, settings.minimum_samples, generator)
    cut = [np.split(share, [int(TRAINING_SHARE * len(share))]) for share in map(generator.permutation, shares)]
    participants = tuple(_participant(dataset, place, *cut[place]) for place in range(settings.participants))
    held_out = list(enumerate(cut[settings.participants :]))
    new_devices = tuple(_new_device(dataset, place, first, second, settings.support_size) for place, (first, second) in held_out)
    answers = Answers({f"new-{place:02d}": dataset.labels[second] for place, (_, second) in held_out})
    return FederatedData(participants, new_devices), answers


def _participant(dataset: Dataset, place: int, train: IndexArray, test: IndexArray) -> Participant:
    """Return one participant from its sample positions."""
    name = f"participant-{place:02d}"
    return Participant(name, dataset.samples[train], dataset.labels[train], dataset.samples[test], dataset.labels[test])


def _new_device(dataset: Dataset, place: int, first: IndexArray, second: IndexArray, support_size: int | None) -> NewDevice:
    """Return one new device from its sample positions."""
    return NewDevice(f"new-{place:02d}", dataset.samples[first[:support_size]], dataset.samples[second])
