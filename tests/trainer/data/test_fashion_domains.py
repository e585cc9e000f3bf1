"""The built-in domains: the same every time, each look what it says, and devices that hold the domains they should."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import ndimage

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.datasets import load_dataset
from trainer.data.federation import split_dataset
from trainer.data.sources.fashion_domains import DOMAIN_NAMES, PRETRAINING, coarse, edges, noisy
from trainer.simulation import default_split


@cache
def domains() -> Dataset:
    return load_dataset("fashion-mnist-domains")


def origins() -> np.ndarray:
    found = domains().domains
    assert found is not None
    return found


def of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a domain's images and the images that they were made of."""
    own = np.flatnonzero(origins() == DOMAIN_NAMES.index(name))
    return domains().samples[own], load_dataset("fashion-mnist").samples[PRETRAINING:][own]


def test_looks_are_what_they_say() -> None:
    made, source = of("inverted")
    assert np.array_equal(made, 255 - source)
    made, source = of("rotated")
    assert np.array_equal(made[5], np.rot90(source[5]))
    made, source = of("transposed")
    assert np.array_equal(made[5], source[5].T)
    made, source = of("original+inverted")
    assert np.array_equal(made[0::2], source[0::2])
    assert np.array_equal(made[1::2], 255 - source[1::2])


def test_edges_and_blur_are_those_of_scipy() -> None:
    images = load_dataset("fashion-mnist").samples[:20].astype(np.float64) / 255.0
    across, down = (np.stack([ndimage.sobel(each, axis, mode="nearest") for each in images]) for axis in (1, 0))
    assert np.allclose(edges(images), np.clip(np.hypot(across, down) / 2, 0, 1))
    blurred = ndimage.uniform_filter(ndimage.uniform_filter(images, (0, 3, 3), mode="nearest"), (0, 3, 3), mode="nearest")
    assert abs(float((noisy(images) - np.clip(blurred, 0, 1)).mean())) < 0.1
    assert np.array_equal(noisy(images), noisy(images))
    assert {len(np.unique(each)) for each in coarse(images)} <= set(range(1, 17))


def test_no_image_is_in_two_looks_or_in_the_backbone() -> None:
    backbone = load_dataset("fashion-mnist-backbone")
    assert len(backbone.labels) + len(domains().labels) == 70_000
    assert np.array_equal(np.bincount(origins())[:6], [3334, 3334, 3334, 3334, 3333, 3333])


def test_participants_come_from_the_training_domains_and_new_devices_from_all() -> None:
    marked = replace(domains(), samples=np.broadcast_to(origins()[:, None, None], (40_000, 2, 2)).astype(np.uint8))
    data, _ = split_dataset(marked, default_split(marked, 0))
    assert [np.unique(each.samples).tolist() for each in data.participants] == [[place] for place in range(6)]
    assert [np.unique(each.support).tolist() for each in data.new_devices] == [[place] for place in range(12)]
    assert {len(each.labels) for each in data.participants} == {400}


def test_more_training_domains_than_there_are_is_refused() -> None:
    with pytest.raises(DatasetError, match="training_domains up to 12"):
        split_dataset(domains(), replace(default_split(domains(), 0), training_domains=13))
