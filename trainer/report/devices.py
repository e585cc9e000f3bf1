"""A device as the report shows it: its class mix and its embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.report.values import mapping, number, whole


@dataclass(frozen=True, eq=False)
class DeviceRecord:
    """One device of a run.

    Attributes:
        device: Device id.
        participates: Whether it took part in training.
        class_counts: Samples of each class, in index order, C of them.
        embedding: Its embedding (E,), or None.
    """

    device: str
    participates: bool
    class_counts: tuple[int, ...]
    embedding: NDArray[np.float64] | None

    @property
    def samples(self) -> int:
        """Return the number of counted samples."""
        return sum(self.class_counts)

    @property
    def dominant(self) -> int:
        """Return the class that it has most of."""
        return self.class_counts.index(max(self.class_counts))

    @property
    def dominance(self) -> float:
        """Return the share of that class, 0 to 1."""
        return max(self.class_counts) / max(1, self.samples)


def read_devices(content: Mapping[str, Any], classes: int) -> tuple[DeviceRecord, ...]:
    """Return the devices that ``devices.json`` holds, participants first.

    Args:
        content: What the file holds.
        classes: Number of classes of the run's task.
    """
    found = [_device(name, mapping(each), classes) for name, each in mapping(mapping(content)["devices"]).items()]
    if len({len(each.embedding) for each in found if each.embedding is not None}) > 1:
        raise ValueError("embeddings are of different lengths")
    return tuple(sorted(found, key=lambda each: (not each.participates, each.device)))


def _device(name: str, content: Mapping[str, Any], classes: int) -> DeviceRecord:
    """Return one device; classes that no device has are missing from the counts' end."""
    counts = [whole(count) for count in content["class_counts"]]
    if len(counts) > classes:
        raise ValueError(f"{name} has {len(counts)} classes, not {classes}")
    own = content["embedding"]
    embedding = None if own is None else np.array([number(value) for value in own], np.float64)
    if embedding is not None and not len(embedding):
        raise ValueError(f"{name} has an empty embedding")
    return DeviceRecord(name, content["participant"] is True, (*counts, *[0] * (classes - len(counts))), embedding)
