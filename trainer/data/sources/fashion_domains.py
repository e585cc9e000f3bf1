"""Fashion-MNIST in several looks: a benchmark of shifted features that needs no download.

Images from ``PRETRAINING`` on are dealt out in turn, one to each domain, so that no image is seen in two looks; those before it
are left for the pretraining of a backbone (``fashion-mnist-backbone``). Six domains are for training. Then come three
transformations that no participant has, and three mixtures of two of the six: what a method must cope with on devices that are
like nobody. Every transformation is fixed; noise and polarity follow from an image's number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trainer.data.dataset import Dataset
from trainer.data.sources.idx_folder import load_fashion_mnist

Images = NDArray[np.float64]  # (N, H, W), 0 to 1

PRETRAINING = 30_000
SEED = 1905
NOISE = 0.2
COARSE = 4  # blocks a side
EDGE_GAIN = 0.5


def original(images: Images) -> Images:
    """Return images (N, H, W) as they are."""
    return images


def inverted(images: Images) -> Images:
    """Return negatives (N, H, W)."""
    return 1.0 - images


def rotated(images: Images) -> Images:
    """Return images (N, H, W) turned by a quarter."""
    turned: Images = np.rot90(images, axes=(1, 2))
    return turned


def edges(images: Images) -> Images:
    """Return edge drawings (N, H, W): the length of the Sobel gradient."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge")
    across, down = padded[:, :, 2:] - padded[:, :, :-2], padded[:, 2:] - padded[:, :-2]  # (N, H + 2, W), (N, H, W + 2)
    horizontal = across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:]  # (N, H, W)
    vertical = down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:]  # (N, H, W)
    drawn: Images = np.clip(EDGE_GAIN * np.hypot(horizontal, vertical), 0.0, 1.0)
    return drawn


def noisy(images: Images) -> Images:
    """Return images (N, H, W) blurred twice by 3 x 3 means, with Gaussian noise on top."""
    blurred = _mean_3x3(_mean_3x3(images))  # (N, H, W)
    generator = np.random.Generator(np.random.Philox(key=np.uint64(SEED)))
    disturbed: Images = np.clip(blurred + NOISE * generator.standard_normal(images.shape), 0.0, 1.0)
    return disturbed


def coarse(images: Images) -> Images:
    """Return images (N, H, W) as 4 x 4 blocks; half of them, by lot, as negatives."""
    side = images.shape[1] // COARSE
    blocks = images.reshape(len(images), COARSE, side, COARSE, side).mean(axis=(2, 4))  # (N, 4, 4)
    whole = blocks.repeat(side, axis=1).repeat(side, axis=2)  # (N, H, W)
    generator = np.random.Generator(np.random.Philox(key=np.uint64(SEED + 1)))
    negative = generator.random(len(images)) < 0.5  # (N,)
    mixed: Images = np.where(negative[:, None, None], 1.0 - whole, whole)
    return mixed


def inverted_edges(images: Images) -> Images:
    """Return negatives of edge drawings (N, H, W)."""
    return inverted(edges(images))


def inverted_upside_down(images: Images) -> Images:
    """Return negatives (N, H, W) turned by a half."""
    turned: Images = inverted(images)[:, ::-1, ::-1]
    return turned


def transposed(images: Images) -> Images:
    """Return images (N, H, W) mirrored at their diagonal."""
    mirrored: Images = images.transpose(0, 2, 1)
    return mirrored


Transform = Callable[[Images], Images]

TRAINING_DOMAINS: Mapping[str, Transform] = {
    "original": original,
    "inverted": inverted,
    "rotated": rotated,
    "edges": edges,
    "noisy": noisy,
    "coarse": coarse,
}
UNKNOWN_DOMAINS: Mapping[str, Transform] = {
    "inverted-edges": inverted_edges,
    "inverted-upside-down": inverted_upside_down,
    "transposed": transposed,
}
MIXTURES = (("original", "inverted"), ("rotated", "edges"), ("noisy", "coarse"))
DOMAIN_NAMES = (*TRAINING_DOMAINS, *UNKNOWN_DOMAINS, *("+".join(pair) for pair in MIXTURES))


def load_fashion_domains() -> Dataset:
    """Return the twelve domains, the six of training first: (N, 28, 28) uint8."""
    dataset = load_fashion_mnist()
    images, labels = dataset.samples[PRETRAINING:], dataset.labels[PRETRAINING:]
    origins = np.arange(len(images)) % len(DOMAIN_NAMES)  # (N,)
    samples = np.empty_like(images)
    for place, name in enumerate(DOMAIN_NAMES):
        own = np.flatnonzero(origins == place)
        samples[own] = _in_look(name, images[own])
    return Dataset("fashion-mnist-domains", samples, labels, dataset.classes, 0.0, 255.0, origins.astype(np.int64), DOMAIN_NAMES)


def load_fashion_backbone() -> Dataset:
    """Return the images that no domain is made of, as they are: for the pretraining of a backbone."""
    dataset = load_fashion_mnist()
    samples, labels = dataset.samples[:PRETRAINING], dataset.labels[:PRETRAINING]
    return replace(dataset, name="fashion-mnist-backbone", samples=samples, labels=labels)


def _in_look(name: str, images: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return raw images (N, H, W) in the look of a domain; in a mixture every other image has the first look."""
    scaled = images.astype(np.float64) / 255.0  # (N, H, W)
    looks = name.split("+")
    known = {**TRAINING_DOMAINS, **UNKNOWN_DOMAINS}
    changed = np.empty_like(scaled)
    for place, look in enumerate(looks):
        changed[place :: len(looks)] = known[look](scaled[place :: len(looks)])
    return np.rint(255.0 * changed).astype(np.uint8)


def _mean_3x3(images: Images) -> Images:
    """Return the means of 3 x 3 fields (N, H, W), edges continued."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge")
    size = images.shape[1:]
    total = np.zeros_like(images)
    for down in range(3):
        for across in range(3):
            total += padded[:, down : down + size[0], across : across + size[1]]
    return total / 9.0
