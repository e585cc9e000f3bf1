"""Devices that never were, made from the participants' validation samples: what choices of settings may rest on.

A new device's data must not decide anything. Each made-up device has a class mix drawn from the Dirichlet of the cut and
draws its support and query samples, with replacement, from what the participants set aside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_runtime.sampling import ClassIndex
from trainer.data.federation import FederatedData, SplitSettings

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


def made_up_devices(data: FederatedData, split: SplitSettings) -> list[MadeUpDevice]:
    """Return the made-up devices of a federation; none where participants set nothing aside."""
    clients = [client for client in data.participants if len(client.validation_labels)]
    if not clients:
        return []
    samples = np.concatenate([client.validation_samples for client in clients])  # (V, *shape)
    labels = np.concatenate([client.validation_labels for client in clients])  # (V,)
    generator = np.random.Generator(np.random.Philox(key=np.uint64(split.seed), counter=[0, 0, 0, 3]))
    index = ClassIndex(labels)
    return [_device(f"made-up-{place:02d}", samples, labels, index, split.concentration, generator) for place in range(DEVICES)]


def _device(
    name: str,
    samples: NDArray[np.generic],
    labels: NDArray[np.int64],
    index: ClassIndex,
    concentration: float,
    generator: np.random.Generator,
) -> MadeUpDevice:
    """Return one device with a class mix of its own."""
    mix = generator.dirichlet(np.full(len(index.classes), concentration))
    held = generator.choice(len(index.classes), size=2 * SAMPLES, p=mix)  # (2 * 256,)
    within = (generator.random(2 * SAMPLES) * index.counts[held]).astype(np.int64)
    places = index.order[index.starts[held] + within]
    support, query = places[:SAMPLES], places[SAMPLES:]
    return MadeUpDevice(name, samples[support], labels[support], samples[query], labels[query])
