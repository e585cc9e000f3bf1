"""Calibration of a trained classifier for label-shift correction, from participants' validation data alone.

Four candidates: a temperature with the training prior taken as uniform, or as the participants' pooled class frequencies;
and temperature with free biases, fitted on the likelihood of labels under each participant's known class mix, or under equal
classes with samples weighing one over the number of their class. Which to use is judged elsewhere, by the accuracy that the
whole correction reaches on devices whose labels it does not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_runtime.label_shift import Calibration, calibration_of_prior, corrected, estimate_prior
from protocol.errors import InputError

BIAS_PENALTY = 1e-3
CALIBRATIONS = ("uniform", "pooled", "fitted", "balanced")


@dataclass(frozen=True, eq=False)
class CalibrationData:
    """One participant: logits of its support (N, C) and of its validation samples (V, C), their labels (V,), its class counts (C,)."""

    support_logits: NDArray[np.floating]
    logits: NDArray[np.floating]
    labels: NDArray[np.int64]
    class_counts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Calibrations by name, and the accuracy that each reaches on participants' validation data."""

    calibrations: Mapping[str, Calibration]
    scores: Mapping[str, float]

    def choose(self, allowed: Sequence[str], scores: Mapping[str, float] | None = None) -> tuple[str, Calibration]:
        """Return name and calibration of the allowed candidate that corrects best, by its own scores or by better ones."""
        unknown = sorted(set(allowed) - set(self.scores))
        if unknown or not allowed:
            raise InputError("correction is unknown", expected=" or ".join(self.scores), got=", ".join(unknown) or "none")
        judged = self.scores if scores is None else scores
        best = max(allowed, key=lambda name: judged[name])
        return best, self.calibrations[best]


def candidates(participants: Sequence[CalibrationData]) -> Candidates:
    """Return the calibrations ``uniform``, ``pooled``, ``fitted`` and ``balanced``."""
    pooled = np.sum([each.class_counts for each in participants], axis=0).astype(np.float64)  # (C,)
    pooled /= pooled.sum()
    uniform = np.full(len(pooled), 1.0 / len(pooled))  # (C,)
    bases = {"uniform": calibration_of_prior(uniform).bias, "pooled": calibration_of_prior(pooled).bias}
    found = {name: _fit(participants, bias, free=False) for name, bias in bases.items()}
    found["fitted"] = _fit(participants, bases["uniform"], free=True)
    found["balanced"] = _fit(participants, bases["uniform"], free=True, balanced=True)
    scores = {name: float(np.mean([_accuracy(each, own) for each in participants])) for name, own in found.items()}
    return Candidates(found, scores)


def _accuracy(participant: CalibrationData, calibration: Calibration) -> float:
    """Return the accuracy on validation samples after the correction that the support's logits give."""
    prior = estimate_prior(participant.support_logits, calibration)
    return float(np.mean(corrected(participant.logits, calibration, prior).argmax(axis=1) == participant.labels))


def _fit(participants: Sequence[CalibrationData], bias: NDArray[np.float64], *, free: bool, balanced: bool = False) -> Calibration:
    """Return the temperature, and with ``free`` the biases, that make the labels likeliest.

    Either under each participant's known class mix, or ``balanced``: under equal classes, samples of a class weighing one over
    their number, so that rare classes count as much as common ones.
    """
    log_scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    change = torch.zeros(len(bias), dtype=torch.float64, requires_grad=free)  # (C,)
    fixed = torch.from_numpy(bias)
    rows = [_rows(each) for each in participants]
    logits, labels, log_mix = (torch.cat([row[place] for row in rows]) for place in range(3))  # (V, C), (V,), (V, C)
    prior = torch.zeros_like(log_mix) if balanced else log_mix  # (V, C)
    weights = (
        1.0 / torch.bincount(labels, minlength=len(bias))[labels].double() if balanced else torch.ones(len(labels), dtype=torch.float64)
    )
    weights = weights / weights.sum()  # (V,)
    optimizer = torch.optim.LBFGS([log_scale, change] if free else [log_scale], max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        scores = torch.exp(log_scale) * logits + fixed + change + prior  # (V, C)
        losses = torch.nn.functional.cross_entropy(scores, labels, reduction="none")  # (V,)
        loss = (weights * losses).sum() + BIAS_PENALTY * change.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return Calibration(float(torch.exp(log_scale.detach())), bias + change.detach().numpy())


def _rows(participant: CalibrationData) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits (V, C), labels (V,) and the logarithms of the participant's class mix for each row (V, C)."""
    smoothed = participant.class_counts + 0.5
    log_mix = torch.from_numpy(np.log(smoothed / smoothed.sum()))  # (C,)
    logits = torch.from_numpy(participant.logits.astype(np.float64))
    return logits, torch.from_numpy(participant.labels), log_mix.expand(len(logits), -1)
