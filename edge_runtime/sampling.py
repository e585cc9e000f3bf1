"""Every random draw of local data: batches for local steps, and the random inputs that a step takes.

A draw depends on (seed, round, device, purpose) and on nothing else: not on the engine, the order of devices, the
number of workers or the machine. Each purpose has its own Philox stream, and arrays are filled step by step, so the
rows of step s stay the same however many steps are asked for. The simulator and the agent on a device both draw here.

Source of the generator: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011 (Philox4x64).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.int64]

PADDING = -1  # the position of a sample that is not there


@dataclass(frozen=True)
class DrawKey:
    """What a draw depends on.

    Attributes:
        seed: Seed of the whole run.
        round: Round number, 0-based.
        device: Device id, the same in the simulator and on the wire.
    """

    seed: int
    round: int
    device: str

    def stream(self, purpose: str) -> np.random.Generator:
        """Return the generator of one purpose (any short name), at its start."""
        digest = hashlib.blake2b(f"{self.device}\0{purpose}".encode(), digest_size=16).digest()
        device_word, purpose_word = np.frombuffer(digest, dtype="<u8")
        counter = np.array([0, self.round, device_word, purpose_word], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=np.uint64(self.seed), counter=counter))


class ClassIndex:
    """Where a device's samples of each class lie.

    Args:
        labels: Class indices of the device's samples, (N,) integers.
    """

    def __init__(self, labels: NDArray[np.integer]) -> None:
        self.classes, counts = np.unique(labels, return_counts=True)  # (H,), (H,): H classes held
        self.counts: IndexArray = counts.astype(np.int64)
        self.order: IndexArray = np.argsort(labels, kind="stable").astype(np.int64)  # (N,) samples grouped by class
        self.starts: IndexArray = np.concatenate([[0], np.cumsum(self.counts)[:-1]]).astype(np.int64)  # (H,)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.order)


class BatchPolicy(Protocol):
    """A rule that picks the samples of each local step."""

    @property
    def batch_size(self) -> int:
        """Samples in each batch."""

    def steps(self, samples: int) -> int:
        """Return the steps that a device with so many samples takes where no number is fixed."""

    def pass_steps(self, samples: int) -> int:
        """Return the steps of which one draw must hold whole multiples: 1 where each step is drawn by itself."""

    def draw(self, key: DrawKey, index: ClassIndex, steps: int) -> IndexArray:
        """Return sample positions, (steps, B) int64, each in 0..N-1, or ``PADDING`` where a batch is shorter than B."""


@dataclass(frozen=True)
class UniformBatches:
    """Every sample equally likely, with replacement."""

    batch_size: int = 64

    def steps(self, samples: int) -> int:
        """Return the steps of one pass, rounded up."""
        return -(-samples // self.batch_size)

    def pass_steps(self, samples: int) -> int:
        """Return 1: no step knows of another."""
        return 1

    def draw(self, key: DrawKey, index: ClassIndex, steps: int) -> IndexArray:
        """Return sample positions, (steps, B) int64."""
        return key.stream("uniform").integers(0, len(index), (steps, self.batch_size))  # (S, B)


@dataclass(frozen=True)
class EpisodeBatches:
    """Batches with a random class mix, so that training meets a continuum of distributions.

    With ``probability`` a step's class mix is drawn from a symmetric Dirichlet(``concentration``) over the classes
    that the device holds; otherwise the batch is uniform.

    Attributes:
        batch_size: Samples in each batch.
        probability: Share of the steps that are episodes, 0 to 1.
        concentration: Dirichlet parameter; smaller gives fewer classes in a batch.
    """

    batch_size: int = 64
    probability: float = 0.7
    concentration: float = 0.2

    def steps(self, samples: int) -> int:
        """Return the steps of one pass, rounded up."""
        return -(-samples // self.batch_size)

    def pass_steps(self, samples: int) -> int:
        """Return 1: no step knows of another."""
        return 1

    def draw(self, key: DrawKey, index: ClassIndex, steps: int) -> IndexArray:
        """Return sample positions, (steps, B) int64."""
        uniform = UniformBatches(self.batch_size).draw(key, index, steps)  # (S, B)
        is_episode = key.stream("episode").random(steps) < self.probability  # (S,)
        return np.where(is_episode[:, None], self._episodes(key, index, steps), uniform)  # (S, B)

    def _episodes(self, key: DrawKey, index: ClassIndex, steps: int) -> IndexArray:
        """Return positions drawn class first, then sample within the class, (steps, B) int64."""
        shape = (steps, len(index.classes))
        gamma = key.stream("mix").standard_gamma(self.concentration, shape) + 1e-30  # (S, H); all may underflow to 0
        cumulative = np.cumsum(gamma, axis=1)  # (S, H)
        cumulative /= cumulative[:, -1:]
        uniforms = key.stream("class").random((steps, self.batch_size))  # (S, B)
        held = (uniforms[:, :, None] >= cumulative[:, None, :-1]).sum(axis=2)  # (S, B) position among held classes
        within = key.stream("within").random((steps, self.batch_size))  # (S, B)
        offset = (within * index.counts[held]).astype(np.int64)  # (S, B)
        places: IndexArray = index.order[index.starts[held] + offset]  # (S, B)
        return places


@dataclass(frozen=True)
class EpochBatches:
    """Whole passes over the data in random order, without replacement; the last batch of a pass may be shorter.

    Attributes:
        batch_size: Samples in each batch.
        epochs: Passes.
    """

    batch_size: int = 10
    epochs: int = 1

    def steps(self, samples: int) -> int:
        """Return the steps of all passes."""
        return self.epochs * self.pass_steps(samples)

    def pass_steps(self, samples: int) -> int:
        """Return the steps of one pass; the steps of a shorter draw do not meet every sample."""
        return -(-samples // self.batch_size)

    def draw(self, key: DrawKey, index: ClassIndex, steps: int) -> IndexArray:
        """Return sample positions, (steps, B) int64, padded with ``PADDING``."""
        samples, stream = len(index), key.stream("epoch")
        per_pass = self.pass_steps(samples)
        passes = -(-steps // per_pass)
        padded = np.full((passes, per_pass * self.batch_size), PADDING)  # (P, S*B)
        for row in padded:
            row[:samples] = stream.permutation(samples)
        return padded.reshape(-1, self.batch_size)[:steps]


def normal_inputs(key: DrawKey, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return standard normal numbers for a step's random input, ``shape`` float32, steps first."""
    return key.stream(f"normal:{name}").standard_normal(shape, dtype=np.float32)


def byte_inputs(key: DrawKey, name: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return uniform bytes for a step's random input, ``shape`` uint8, steps first."""
    size = int(np.prod(shape))
    return np.frombuffer(bytearray(key.stream(f"bytes:{name}").bytes(size)), np.uint8).reshape(shape)
