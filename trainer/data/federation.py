"""Participants and new devices made from one data set, with the new devices' labels kept apart.

Training and personalization see ``FederatedData``; only the evaluation sees ``Answers``. Every client keeps 80 % of its
share for training (or as unlabelled support) and 20 % for testing (or as query). A participant may set the last part of
its training samples aside for validation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.partitions.base import Cut, IndexArray
from trainer.data.partitions.registry import PARTITIONS

Samples = NDArray[np.generic]
Labels = NDArray[np.int64]
TRAINING_SHARE = 0.8
HIGHEST_VALIDATION_SHARE = 0.9


@dataclass(frozen=True)
class SplitSettings:
    """How a data set becomes devices.

    Attributes:
        participants: Clients that take part in training.
        new_devices: Clients held out whole.
        concentration: Dirichlet parameter of the class mixes or sizes.
        minimum_samples: Samples that each client has at least.
        support_size: Unlabelled samples of a new device used for personalization, at most; None for all it has.
        seed: Seed of the cut.
        partition: Name of the cut, a key of ``PARTITIONS``.
        classes_per_client: Classes of one client, for the partition ``classes``.
        validation_share: Share of a participant's training samples that is set aside, 0 to 0.9.
        training_size: Samples that a participant trains on, at most; what is beyond is not used at all. None for all it has.
        training_domains: How many of the domains, the first ones, participants come from, for partitions by domain; 0 for all.
    """

    participants: int
    new_devices: int
    concentration: float
    minimum_samples: int
    support_size: int | None
    seed: int
    partition: str = "dirichlet"
    classes_per_client: int = 2
    validation_share: float = 0.0
    training_size: int | None = None
    training_domains: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that no data set fits."""
        if self.partition not in PARTITIONS:
            raise DatasetError("partition is unknown", expected=" or ".join(PARTITIONS), got=self.partition)
        bounds = {"participants": 1, "new_devices": 0, "minimum_samples": 0, "classes_per_client": 1, "seed": 0, "training_domains": 0}
        for name, least in bounds.items():
            if getattr(self, name) < least:
                raise DatasetError(f"setting {name} is out of range", expected=f"{least} or more", got=getattr(self, name))
        if not 0 < self.concentration < np.inf:
            raise DatasetError("setting concentration is out of range", expected="a positive number", got=self.concentration)
        if not 0 <= self.validation_share <= HIGHEST_VALIDATION_SHARE:
            raise DatasetError("setting validation_share is out of range", expected="0 to 0.9", got=self.validation_share)
        for name in ("support_size", "training_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DatasetError(f"setting {name} is out of range", expected="1 or more, or none for all", got=value)


@dataclass(frozen=True, eq=False)
class Participant:
    """A client that takes part: samples (N, *shape) and labels (N,) for training, testing and, if asked for, validation."""

    device: str
    samples: Samples
    labels: Labels
    test_samples: Samples
    test_labels: Labels
    validation_samples: Samples = field(default_factory=lambda: np.empty(0, np.uint8))
    validation_labels: Labels = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True, eq=False)
class NewDevice:
    """A client that never took part: unlabelled support (N, *shape) and query (Q, *shape), no labels."""

    device: str
    support: Samples
    query: Samples


@dataclass(frozen=True, eq=False)
class Answers:
    """What the new devices' samples are, by device id.

    Attributes:
        query_labels: Labels of the query sets, (Q,) int64 each: for scoring only.
        support_labels: Labels of the support sets, (N,) int64 each: for those methods alone that may use them.
    """

    query_labels: Mapping[str, Labels]
    support_labels: Mapping[str, Labels] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """What training and personalization may see."""

    participants: tuple[Participant, ...]
    new_devices: tuple[NewDevice, ...]


def split_dataset(dataset: Dataset, settings: SplitSettings) -> tuple[FederatedData, Answers]:
    """Return the devices, and apart from them the answers.

    Raises:
        DatasetError: The data set is too small for these settings, or lacks what the partition needs.
    """
    names = _device_names("participant", settings.participants), _device_names("new", settings.new_devices)
    cut = _cut(dataset, settings, [*names[0], *names[1]])
    participants = tuple(_participant(dataset, name, *cut[name], settings) for name in names[0])
    support = {name: cut[name][0][: settings.support_size] for name in names[1]}
    query = {name: cut[name][1] for name in names[1]}
    new_devices = tuple(NewDevice(name, dataset.samples[support[name]], dataset.samples[query[name]]) for name in names[1])
    answers = Answers(
        {name: dataset.labels[places] for name, places in query.items()},
        {name: dataset.labels[places] for name, places in support.items()},
    )
    return FederatedData(participants, new_devices), answers


def _device_names(kind: str, count: int) -> list[str]:
    """Return names whose alphabetical order is the numeric one: at least two digits, more from the 101st device on."""
    width = max(2, len(str(count - 1)))
    return [f"{kind}-{place:0{width}d}" for place in range(count)]


def _cut(dataset: Dataset, settings: SplitSettings, names: list[str]) -> dict[str, tuple[IndexArray, IndexArray]]:
    """Return each device's sample positions: for training or as support, and for testing or as query."""
    generator = np.random.Generator(np.random.Philox(key=np.uint64(settings.seed), counter=[0, 0, 0, 1]))
    numbers = Cut(
        len(names),
        settings.minimum_samples,
        settings.concentration,
        settings.classes_per_client,
        settings.participants,
        settings.training_domains,
    )
    shares = PARTITIONS[settings.partition](dataset, numbers, generator)
    least = 2 if settings.validation_share == 0 else 3
    parts = {}
    for name, share in zip(names, map(generator.permutation, shares), strict=True):
        if len(share) < least:
            hint = "raise minimum_samples, or lower the number of devices"
            raise DatasetError(f"{name} would have too few samples", expected=f"at least {least}", got=len(share), hint=hint)
        parts[name] = share[: int(TRAINING_SHARE * len(share))], share[int(TRAINING_SHARE * len(share)) :]
    return parts


def _participant(dataset: Dataset, name: str, first: IndexArray, test: IndexArray, settings: SplitSettings) -> Participant:
    """Return one participant from its sample positions."""
    aside = max(1, int(settings.validation_share * len(first))) if settings.validation_share > 0 else 0
    train, validation = first[: len(first) - aside][: settings.training_size], first[len(first) - aside :]
    return Participant(
        name,
        dataset.samples[train],
        dataset.labels[train],
        dataset.samples[test],
        dataset.labels[test],
        dataset.samples[validation],
        dataset.labels[validation],
    )
