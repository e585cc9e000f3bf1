"""False alarms and detection of a bundle's drift monitor, on samples of a run's new devices, which training never saw.

    python benchmarks/drift.py runs/first bundle/ release.pub

Stationary: a device personalises from 256 samples and watches 2,000 more of the same class mix; any alarm is false. Moved:
after 320 samples the class mix changes by a total variation of 0.5, towards a random one (Dirichlet 0.1); detected if the
alarm comes within 200 samples. Mixes are those of the new devices, and random ones (Dirichlet 0.3); samples are drawn by
class with replacement.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edge_runtime import Bundle
from edge_runtime.drift import DriftMonitor, Reference
from trainer.data.datasets import load_dataset
from trainer.data.federation import split_dataset
from trainer.runs import Run

Exact = NDArray[np.float64]

SUPPORT = 256
STATIONARY = 2000
BEFORE = 320
WITHIN = 200
TOTAL_VARIATION = 0.5
BATCH = 20  # what a device's program looks at together


class Pool:
    """Embeddings (N, E) and labels (N,) of samples that training never saw, to draw from by class."""

    def __init__(self, embeddings: Exact, labels: NDArray[np.int64], classes: int, seed: int) -> None:
        self._by_class = [embeddings[labels == place] for place in range(classes)]
        self.held = np.array([len(each) > 0 for each in self._by_class])
        self.random = np.random.default_rng(seed)

    def draw(self, mix: Exact, count: int) -> Exact:
        """Return embeddings (count, E) of a class mix (C,)."""
        labels = self.random.choice(len(mix), count, p=mix)
        return np.stack([self._by_class[label][self.random.integers(len(self._by_class[label]))] for label in labels])

    def random_mix(self, concentration: float) -> Exact:
        """Return a random class mix (C,) over the classes that there are."""
        mix = np.where(self.held, self.random.gamma(concentration, size=len(self.held)) + 1e-12, 0.0)
        return mix / mix.sum()

    def moved(self, mix: Exact) -> Exact:
        """Return a class mix (C,) at the total variation, in a random direction."""
        while True:
            other = self.random_mix(0.1)
            distance = np.abs(mix - other).sum() / 2
            if distance >= TOTAL_VARIATION:
                return mix + TOTAL_VARIATION / distance * (other - mix)


def first_alarm(monitor: DriftMonitor, stream: Exact) -> int | None:
    """Return after how many samples of a stream (N, E) the monitor raised its alarm, or None."""
    for start in range(0, len(stream), BATCH):
        if monitor.observe(stream[start : start + BATCH]).event is not None:
            return min(start + BATCH, len(stream))
    return None


def trials(bundle: Bundle, pool: Pool, mixes: Iterator[Exact]) -> dict[str, float]:
    """Return shares of false alarms and of detections, and the median delay in samples, over one trial of each for a mix."""
    false_alarms, delays, count = 0, [], 0
    block = bundle.manifest.drift
    if block is None:
        raise SystemExit("the bundle has no drift block")
    for mix in mixes:
        count += 1
        false_alarms += first_alarm(DriftMonitor(Reference.of(pool.draw(mix, SUPPORT)), block), pool.draw(mix, STATIONARY)) is not None
        monitor = DriftMonitor(Reference.of(pool.draw(mix, SUPPORT)), block)
        early = first_alarm(monitor, pool.draw(mix, BEFORE)) is not None
        delays.append(None if early else first_alarm(monitor, pool.draw(pool.moved(mix), WITHIN)))
    found = [delay for delay in delays if delay is not None]
    return {"trials": count, "false_alarms": false_alarms / count, "detected": len(found) / count, "median_delay": float(np.median(found))}


def measure(run: Run, bundle: Bundle, repeats: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the figures under the new devices' own mixes, and under random ones."""
    data, answers = split_dataset(load_dataset(run.config.data), run.config.split)
    samples = np.concatenate([np.concatenate([device.support, device.query]) for device in data.new_devices])
    own = [np.concatenate([answers.support_labels[each.device], answers.query_labels[each.device]]) for each in data.new_devices]
    classes = len(run.config.task.classes)
    pool = Pool(bundle.embed(samples).astype(np.float64), np.concatenate(own), classes, seed)
    mixes = [np.bincount(labels, minlength=classes) / len(labels) for labels in own]
    return {
        "new devices' mixes": trials(bundle, pool, (mix for mix in mixes for _ in range(repeats))),
        "random mixes": trials(bundle, pool, (pool.random_mix(0.3) for _ in range(repeats * len(mixes)))),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("trusted", type=Path)
    parser.add_argument("--repeats", type=int, default=50, help="trials for each new device")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = measure(Run.open(arguments.run), Bundle.open(arguments.bundle, arguments.trusted), arguments.repeats, arguments.seed)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
