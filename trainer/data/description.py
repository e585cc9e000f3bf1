"""What a cut gave each device: sizes and class counts, for tables and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.data.federation import Answers, FederatedData, Labels

NO_LABELS = np.empty(0, np.int64)


@dataclass(frozen=True)
class DeviceDescription:
    """One device of a cut.

    Attributes:
        device: Device id.
        participates: Whether it takes part in training.
        training: Samples for training, or unlabelled support of a new device.
        validation: Samples set aside for validation; 0 for a new device.
        test: Samples for testing, or the query of a new device.
        class_counts: Samples of each class among those whose labels are known, in index order.
    """

    device: str
    participates: bool
    training: int
    validation: int
    test: int
    class_counts: tuple[int, ...]

    @property
    def samples(self) -> int:
        """Return the number of all its samples."""
        return self.training + self.validation + self.test


def describe(data: FederatedData, answers: Answers) -> tuple[DeviceDescription, ...]:
    """Return one description a device, participants first.

    Args:
        data: The devices.
        answers: Labels of the new devices; where those of the support are missing, only the query is counted by class.
    """
    labels = [[each.labels, each.validation_labels, each.test_labels] for each in data.participants]
    labels += [[answers.support_labels.get(each.device, NO_LABELS), answers.query_labels[each.device]] for each in data.new_devices]
    classes = 1 + max((int(part.max()) for parts in labels for part in parts if len(part)), default=-1)
    counts = [_count(parts, classes) for parts in labels]
    participants = [
        DeviceDescription(each.device, True, len(each.labels), len(each.validation_labels), len(each.test_labels), count)
        for each, count in zip(data.participants, counts, strict=False)
    ]
    new_devices = [
        DeviceDescription(each.device, False, len(each.support), 0, len(each.query), count)
        for each, count in zip(data.new_devices, counts[len(participants) :], strict=True)
    ]
    return (*participants, *new_devices)


def _count(parts: Sequence[Labels], classes: int) -> tuple[int, ...]:
    """Return the number of labels of each class."""
    return tuple(np.bincount(np.concatenate(parts), minlength=classes).tolist())
