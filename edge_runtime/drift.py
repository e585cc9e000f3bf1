"""Has a device's distribution moved? The running mean embedding of its samples against the one that its classifier was made for.

The running mean is exponentially weighted (Roberts, "Control chart tests based on geometric moving averages",
Technometrics 1 (1959)), its distance from the reference is Mahalanobis' in units of its own variance (Lowry et al., "A
multivariate exponentially weighted moving average control chart", Technometrics 34 (1992)):

    D = d' (S + ridge I)^-1 d / (v_t + u_t^2 / n)        d = running mean - reference mean

S is the covariance of the n reference embeddings, v_t the sum of the squared weights, u_t their sum. The ridge is ours: a
device that has seen one class has almost no covariance, and a single stray sample would be an alarm. No labels are used,
and samples are looked at eight at a time, so that nothing depends on how they come in batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protocol.device_blocks import DriftBlock
from protocol.errors import InputError, SampleNotFiniteError, SampleShapeError

STRIDE = 8  # samples between two looks
FEWEST_FOR_REFERENCE = 2

Floats = NDArray[np.floating]
Exact = NDArray[np.float64]


class DriftStatistic:
    """The statistic D of M devices at once, all of which have seen equally many samples.

    Args:
        means: Reference mean embeddings, (M, E).
        covariances: Covariances of the reference embeddings, (M, E, E).
        counts: Samples behind each reference, (M,).
        settings: Window and ridge.
    """

    def __init__(self, means: Floats, covariances: Floats, counts: NDArray[np.integer] | Exact, settings: DriftBlock) -> None:
        self._reference = means.astype(np.float64)  # (M, E)
        ridge = settings.ridge * np.eye(means.shape[1])  # (E, E)
        self._precision = np.linalg.inv(covariances.astype(np.float64) + ridge)  # (M, E, E)
        self._reference_variance = 1.0 / counts  # (M,)
        self._rate = 2.0 / (settings.window + 1)
        self._weights = self._rate * (1.0 - self._rate) ** np.arange(STRIDE - 1, -1, -1)  # (STRIDE,)
        self.running = self._reference.copy()  # (M, E)
        self.samples = 0

    def step(self, rows: Floats) -> Exact:
        """Take in the next embeddings (M, STRIDE, E) and return the statistics (M,)."""
        self.running = (1.0 - self._rate) ** STRIDE * self.running + np.einsum("s,mse->me", self._weights, rows)
        self.samples += STRIDE
        return self.value()

    def value(self) -> Exact:
        """Return the statistics (M,) as they stand."""
        kept = (1.0 - self._rate) ** self.samples
        own = self._rate * (1.0 - kept**2) / (2.0 - self._rate)  # sum of the squared weights
        difference = self.running - self._reference  # (M, E)
        distance = np.einsum("me,mef,mf->m", difference, self._precision, difference)  # (M,)
        values: Exact = distance / np.maximum(own + (1.0 - kept) ** 2 * self._reference_variance, 1e-12)
        return values


@dataclass(frozen=True, eq=False)
class Reference:
    """The embeddings that a classifier was made for.

    Attributes:
        mean: (E,).
        covariance: (E, E).
        count: Samples behind them.
    """

    mean: Floats
    covariance: Floats
    count: int

    @classmethod
    def of(cls, embeddings: Floats) -> Reference:
        """Return the reference that embeddings (N, E) are, N at least 2."""
        if len(embeddings) < FEWEST_FOR_REFERENCE:
            raise InputError("too few embeddings for a reference", expected=f"at least {FEWEST_FOR_REFERENCE}", got=len(embeddings))
        centred = embeddings.astype(np.float64) - embeddings.mean(axis=0, dtype=np.float64)  # (N, E)
        return cls(embeddings.mean(axis=0, dtype=np.float64), centred.T @ centred / len(centred), len(embeddings))


@dataclass(frozen=True)
class DriftReport:
    """What a monitor found.

    Attributes:
        statistic: D after the last look.
        samples: Samples seen since the reference in use was taken.
        event: ``moved``: the distribution left the reference; ``again``: the new one did not hold either; ``settled``: it holds;
            None otherwise. With an event, make the classifier again from ``recent``.
    """

    statistic: float
    samples: int
    event: Literal["moved", "again", "settled"] | None


class DriftMonitor:
    """Watches the embeddings of one device.

    After an alarm the distribution counts as moved until a whole window stays below the release value of a reference taken since:
    no second alarm meanwhile, so one move is one alarm.

    Args:
        reference: What the classifier in use was made for.
        settings: The bundle's drift block.
        memory: Embeddings kept for the next reference.
    """

    def __init__(self, reference: Reference, settings: DriftBlock, memory: int = 256) -> None:
        self.settings = settings
        self.moved = False
        self.alarms = 0
        self._memory = max(memory, settings.window)
        self._pending: Floats = np.empty((0, len(reference.mean)))
        self._recent: Floats = np.empty((0, len(reference.mean)))
        self.restart(reference)

    def restart(self, reference: Reference) -> None:
        """Watch against another reference from now on."""
        if not (np.isfinite(reference.mean).all() and np.isfinite(reference.covariance).all()):
            raise SampleNotFiniteError("a reference embedding is NaN or infinite", hint="personalise again")
        counts = np.array([reference.count])
        self._statistic = DriftStatistic(reference.mean[None], reference.covariance[None], counts, self.settings)
        self._value = 0.0

    @property
    def statistic(self) -> float:
        """Return D after the last look."""
        return self._value

    @property
    def samples(self) -> int:
        """Return the samples looked at since the reference in use was taken."""
        return self._statistic.samples

    @property
    def running_mean(self) -> Exact:
        """Return the running mean embedding, (E,)."""
        mean: Exact = self._statistic.running[0]
        return mean

    def resume(self, running_mean: Floats, samples: int, *, moved: bool, alarms: int) -> None:
        """Go on where a saved monitor with the same reference stood."""
        self._statistic.running, self._statistic.samples = running_mean.astype(np.float64)[None], samples
        self.moved, self.alarms = moved, alarms
        self._value = float(self._statistic.value()[0])

    def recent(self) -> Reference:
        """Return the reference that the latest samples are: those since the last event, at most ``memory`` of them."""
        return Reference.of(self._recent)

    def observe(self, embeddings: Floats) -> DriftReport:
        """Take in embeddings (B, E) in the order of their samples; at most one event is reported, the last.

        Raises:
            SampleShapeError: Of another length.
            SampleNotFiniteError: NaN or infinity.
        """
        if embeddings.ndim != 2 or embeddings.shape[1] != self._recent.shape[1]:
            raise SampleShapeError("embeddings have the wrong shape", expected=f"(B, {self._recent.shape[1]})", got=embeddings.shape)
        if not np.isfinite(embeddings).all():
            raise SampleNotFiniteError("an embedding is NaN or infinite", hint="look at the samples")
        waiting = np.concatenate([self._pending, embeddings])
        event = None
        for start in range(0, len(waiting) - STRIDE + 1, STRIDE):
            event = self._look(waiting[start : start + STRIDE]) or event
        self._pending = waiting[len(waiting) - len(waiting) % STRIDE :]
        return DriftReport(self._value, self.samples, event)

    def _look(self, rows: Floats) -> Literal["moved", "again", "settled"] | None:
        """Take in the next few embeddings (STRIDE, E) and return what happened."""
        self._recent = np.concatenate([self._recent, rows])[-self._memory :]
        self._value = float(self._statistic.step(rows[None])[0])
        if not self.moved:
            return self._alarm() if self._value >= self.settings.threshold else None
        if self.samples < self.settings.window:
            return None
        self.moved = self._value >= self.settings.release
        self.restart(self.recent())
        return "again" if self.moved else "settled"

    def _alarm(self) -> Literal["moved"]:
        """Note that the distribution has moved; the latest half window is the first guess of the new one."""
        self.moved, self.alarms = True, self.alarms + 1
        self._recent = self._recent[-max(self.settings.window // 2, FEWEST_FOR_REFERENCE) :]
        self.restart(self.recent())
        return "moved"
