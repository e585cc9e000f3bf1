"""Devices that never were, made from the participants' validation samples: what choices of settings may rest on.

A new device's data must not decide anything. Of each participant's validation samples a half is for calibration, a quarter for
the supports and a quarter for the queries of made-up devices, so that nothing is judged on samples that it was fitted to or
personalised from. Each made-up device has a class mix drawn from the Dirichlet of the cut and draws its samples from those
quarters with replacement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.sampling import ClassIndex
from trainer.data.federation import FederatedData, Participant, SplitSettings

DEVICES = 20
SAMPLES = 256


@dataclass(frozen=True, eq=False)
class MadeUpDevice:
    """Samples (256, *shape) and labels (256,) for personalisation and for scoring."""

    device: str
    support: NDArray[np.generic]
    support_labels: NDArray[np.int64]
    query: NDArray[np.generic]
    query_labels: NDArray[np.int64]


def for_calibration(client: Participant) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return the samples (V, *shape) and labels (V,) that calibration is fitted to; training samples where nothing is set aside."""
    if not len(client.validation_labels):
        return client.samples, client.labels
    half = -(-len(client.validation_labels) // 2)
    return client.validation_samples[:half], client.validation_labels[:half]


def made_up_devices(data: FederatedData, split: SplitSettings) -> list[MadeUpDevice]:
    """Return the made-up devices of a federation; none where participants set too little aside."""
    rests = [_rest(client) for client in data.participants if len(client.validation_labels)]
    pools = [_Pool.of([(samples[place::2], labels[place::2]) for samples, labels in rests]) for place in range(2)]
    both = [pool for pool in pools if pool is not None]
    if len(both) < 2:
        return []
    classes = np.intersect1d(both[0].index.classes, both[1].index.classes)
    if not len(classes):
        return []
    generator = np.random.Generator(np.random.Philox(key=np.uint64(split.seed), counter=[0, 0, 0, 3]))
    return [_device(f"made-up-{place:02d}", both, classes, split.concentration, generator) for place in range(DEVICES)]


def _rest(client: Participant) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return the validation samples that calibration does not see, ordered by class, so that every other one is a fair half."""
    half = -(-len(client.validation_labels) // 2)
    samples, labels = client.validation_samples[half:], client.validation_labels[half:]
    order = np.argsort(labels, kind="stable")
    return samples[order], labels[order]


@dataclass(frozen=True, eq=False)
class _Pool:
    """Samples (V, *shape) and labels (V,) to draw from, and where each class lies."""

    samples: NDArray[np.generic]
    labels: NDArray[np.int64]
    index: ClassIndex

    @classmethod
    def of(cls, parts: Sequence[tuple[NDArray[np.generic], NDArray[np.int64]]]) -> _Pool | None:
        """Return the pool of all parts together, or None where that is empty."""
        filled = [part for part in parts if len(part[1])]
        if not filled:
            return None
        samples, labels = (np.concatenate(column) for column in zip(*filled, strict=True))
        return cls(samples, labels, ClassIndex(labels))

    def draw(self, held: NDArray[np.int64], generator: np.random.Generator) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """Return samples (256, *shape) and labels (256,) of the given classes (256,)."""
        rows = np.searchsorted(self.index.classes, held)  # (256,)
        within = (generator.random(len(held)) * self.index.counts[rows]).astype(np.int64)
        places = self.index.order[self.index.starts[rows] + within]
        return self.samples[places], self.labels[places]


def _device(
    name: str, pools: Sequence[_Pool], classes: NDArray[np.int64], concentration: float, generator: np.random.Generator
) -> MadeUpDevice:
    """Return one device with a class mix of its own, over the classes that both pools hold."""
    mix = generator.dirichlet(np.full(len(classes), concentration))
    support, query = (pool.draw(generator.choice(classes, size=SAMPLES, p=mix), generator) for pool in pools)
    return MadeUpDevice(name, *support, *query)
