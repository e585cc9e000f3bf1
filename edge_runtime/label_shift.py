"""Class prior of a device from its unlabelled data, and the correction of a classifier by it.

A classifier trained under one class mix tells p(y | x) for that mix. Where only the mix differs on a device, its own
mix q maximises the likelihood of its unlabelled samples, and expectation maximisation finds it:

    r_nc = p(c | x_n) q_c / prior_c, normalised over c        q_c = mean over n of r_nc

Source: Saerens, Latinne and Decaestecker, "Adjusting the outputs of a classifier to new a priori probabilities", Neural
Computation 14 (2002). Temperature and bias in front of it: Alexandari, Kundaje and Shrikumar, "Maximum likelihood with
bias-corrected calibration is hard-to-beat at label shift adaptation", ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SampleNotFiniteError, SampleShapeError

ITERATIONS = 100
PSEUDO_COUNT = 0.1  # of each class: a class that the support lacks stays possible


@dataclass(frozen=True, eq=False)
class Calibration:
    """How a classifier's logits become log-probabilities under equal classes: ``scale * logits + bias``.

    Attributes:
        scale: Inverse temperature.
        bias: One number a class, (C,) float64; minus the logarithm of the training prior for a plain classifier.
    """

    scale: float
    bias: NDArray[np.float64]

    def apply(self, logits: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return calibrated logits (N, C) float64."""
        return self.scale * logits.astype(np.float64) + self.bias


def calibration_of_prior(prior: NDArray[np.floating], scale: float = 1.0) -> Calibration:
    """Return the calibration of a classifier trained under a class prior (C,), which is floored at 0.1 %."""
    return Calibration(scale, -np.log(np.maximum(prior.astype(np.float64), 1e-3)))


def estimate_prior(logits: NDArray[np.floating], calibration: Calibration) -> NDArray[np.float64]:
    """Return the class prior (C,) float64 of unlabelled samples, from their logits.

    Args:
        logits: Of the support samples, (N, C), N at least 1.
        calibration: Of the classifier that gave them.

    Raises:
        SampleShapeError: The logits are no such matrix.
        SampleNotFiniteError: A logit is NaN or infinite.
    """
    if logits.ndim != 2 or len(logits) == 0:
        raise SampleShapeError("logits have the wrong shape", expected="(N, C), N at least 1", got=logits.shape)
    if calibration.bias.shape != logits.shape[1:]:
        raise SampleShapeError("logits do not fit the calibration", expected=f"{len(calibration.bias)} classes", got=logits.shape[1])
    if not np.isfinite(logits).all():
        raise SampleNotFiniteError("a logit is NaN or infinite", hint="look at the samples and at the classifier")
    scores = calibration.apply(logits)  # (N, C)
    likelihood = np.exp(scores - scores.max(axis=1, keepdims=True))  # (N, C), up to a factor for each sample
    samples, classes = likelihood.shape
    prior = np.full(classes, 1.0 / classes)  # (C,)
    for _ in range(ITERATIONS):
        joint = likelihood * prior  # (N, C)
        joint /= joint.sum(axis=1, keepdims=True)
        prior = (joint.sum(axis=0) + PSEUDO_COUNT) / (samples + classes * PSEUDO_COUNT)
    return prior


def corrected(logits: NDArray[np.floating], calibration: Calibration, prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log-probabilities up to a constant (B, C) float64 under a device's class prior (C,)."""
    return calibration.apply(logits) + np.log(prior)
