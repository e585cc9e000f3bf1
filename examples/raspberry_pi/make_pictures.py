"""Writes scikit-learn's handwritten digits as a camera would leave pictures: one file each, in a folder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main() -> None:
    """Write some digits into the folder that is named."""
    folder, first, count = Path(sys.argv[1]), 200, 300
    folder.mkdir(parents=True, exist_ok=True)
    digits = load_digits().images[first : first + count].astype(np.uint8)  # (N, 8, 8), 0 to 16
    for place, digit in enumerate(digits):
        np.save(folder / f"{place:04}.npy", digit[None])  # a file may hold several samples: (1, 8, 8)
    np.save("unlabelled.npy", digits)


if __name__ == "__main__":
    main()
