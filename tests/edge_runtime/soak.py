"""A long life of a device in one process: predictions, many batch sizes, many bundles; prints how much resident memory grew.

python -m tests.edge_runtime.soak BUNDLE RELEASE.pub PREDICTIONS BATCH_SIZES SWAPS
"""

from __future__ import annotations

import gc
import sys

import numpy as np

from edge_runtime import Bundle
from edge_runtime.bench.measure import made_up
from edge_runtime.bench.timing import resident_megabytes


def life(bundle: str, trusted: str, predictions: int, batch_sizes: int, swaps: int) -> None:
    """Use a bundle so many times, fed and baked in turn."""
    for swap in range(swaps):
        opened = Bundle.open(bundle, trusted)
        samples = made_up(opened.manifest.raw_input, 256)
        classifier = opened.personalize(samples, bake=swap % 2 == 1)
        for place in range(predictions // swaps):
            size = 1 + (swap * (predictions // swaps) + place) * 7 % batch_sizes
            classifier.predict(samples[:size] if size <= 256 else np.repeat(samples, 2, axis=0)[:size])


def main() -> None:
    """Live a little first, then long, and print both sizes in megabytes."""
    bundle, trusted, *numbers = sys.argv[1:]
    predictions, batch_sizes, swaps = map(int, numbers)
    life(bundle, trusted, predictions // 10, batch_sizes, max(1, swaps // 10))
    gc.collect()
    before = resident_megabytes()
    life(bundle, trusted, predictions, batch_sizes, swaps)
    gc.collect()
    print(before, resident_megabytes())  # noqa: T201  # the test reads it


if __name__ == "__main__":
    main()
