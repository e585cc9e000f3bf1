"""scikit-learn's digits, which need no download."""

from __future__ import annotations

import numpy as np

from trainer.data.dataset import Dataset


def load_digits() -> Dataset:
    """Return the 1,797 handwritten digits that scikit-learn carries: (N, 8, 8) uint8, 0 to 16."""
    from sklearn import datasets  # takes seconds to import, and only the digits need it

    digits = datasets.load_digits()
    return Dataset("digits", digits.images.astype(np.uint8), digits.target.astype(np.int64), tuple("0123456789"), 0.0, 16.0)
