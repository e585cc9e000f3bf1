"""A data set as every loader returns it: raw samples, class indices, class names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples in their raw dtype; normalisation belongs to the model, not to the data.

    Attributes:
        name: Short name for folders and tables.
        samples: Raw samples, (N, *shape), dtype as stored.
        labels: Class indices, (N,) int64 in 0..C-1.
        classes: Class names, C of them, in index order.
        minimum: Smallest raw value the source can hold.
        maximum: Largest raw value the source can hold.
        domains: Where each sample comes from, (N,) int64 indices into ``domain_names``; None when the source has no domains.
        domain_names: Names of the domains, in index order.
    """

    name: str
    samples: NDArray[np.generic]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    minimum: float
    maximum: float
    domains: NDArray[np.int64] | None = None
    domain_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a data set that contradicts itself."""
        if len(self.samples) != len(self.labels):
            raise DatasetError(f"{self.name}: labels do not fit the samples", expected=len(self.samples), got=len(self.labels))
        if len(self.labels) == 0:
            raise DatasetError(f"{self.name} holds no sample", expected="at least one labelled sample")
        if not 2 <= len(self.classes) <= 10_000 or len(set(self.classes)) != len(self.classes) or "" in self.classes:
            got = f"{len(self.classes)} names, {len(set(self.classes))} different"
            raise DatasetError(f"{self.name}: classes cannot be told apart", expected="2 to 10000 different names", got=got)
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            wrong = self.labels[(self.labels < 0) | (self.labels >= len(self.classes))][0]
            raise DatasetError(f"{self.name}: a label is outside the classes", expected=f"0 to {len(self.classes) - 1}", got=int(wrong))
        if np.issubdtype(self.samples.dtype, np.floating) and not np.isfinite(self.samples).all():
            raise DatasetError(f"{self.name} holds NaN or infinity", hint="clean the samples before training")
        self._check_domains()

    def _check_domains(self) -> None:
        """Refuse domains that do not fit the samples or their names."""
        if self.domains is None:
            if self.domain_names:
                raise DatasetError(f"{self.name} names domains but assigns none", expected="a domain for each sample")
            return
        if self.domains.shape != self.labels.shape:
            raise DatasetError(f"{self.name}: domains do not fit the samples", expected=self.labels.shape, got=self.domains.shape)
        if len(set(self.domain_names)) != len(self.domain_names) or "" in self.domain_names:
            raise DatasetError(f"{self.name}: domains cannot be told apart", expected="different names", got=list(self.domain_names))
        if self.domains.min() < 0 or self.domains.max() >= len(self.domain_names):
            wrong = int(self.domains.max() if self.domains.min() >= 0 else self.domains.min())
            raise DatasetError(f"{self.name}: a domain has no name", expected=f"0 to {len(self.domain_names) - 1}", got=wrong)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of one raw sample."""
        return tuple(self.samples.shape[1:])
