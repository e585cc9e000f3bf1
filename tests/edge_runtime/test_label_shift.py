"""The class prior of unlabelled samples: the likeliest there is, the right one where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_runtime.label_shift import PSEUDO_COUNT, Calibration, calibration_of_prior, corrected, estimate_prior
from protocol.errors import SampleNotFiniteError, SampleShapeError

CENTRES = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.5]])  # (C, D)


def gaussians(prior: NDArray[np.float64], samples: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return log-likelihoods (N, C) up to a constant and labels (N,) of samples of a mixture."""
    generator = np.random.default_rng(seed)
    labels = generator.choice(len(prior), samples, p=prior)
    points = CENTRES[labels] + generator.normal(size=(samples, 2))  # (N, D)
    return -0.5 * ((points[:, None, :] - CENTRES[None, : len(prior)]) ** 2).sum(axis=2), labels


def plain(classes: int) -> Calibration:
    return Calibration(1.0, np.zeros(classes))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.95])
@pytest.mark.parametrize("samples", [1, 5, 200])
def test_the_prior_of_two_classes_is_the_best_of_a_fine_grid(share: float, samples: int) -> None:
    logits, _ = gaussians(np.array([share, 1 - share]), samples)
    likelihood = np.exp(logits)
    grid = np.linspace(0, 1, 20_001)[1:-1]  # (G,)
    mixed = np.log(likelihood[:, :1] * grid + likelihood[:, 1:] * (1 - grid)).sum(axis=0)  # (G,)
    penalised = mixed + PSEUDO_COUNT * (np.log(grid) + np.log(1 - grid))
    found = estimate_prior(logits, plain(2))
    assert found.sum() == pytest.approx(1.0)
    best = grid[penalised.argmax()]
    assert found[0] == pytest.approx(best, abs=2e-3)


@pytest.mark.parametrize("prior", [[0.7, 0.2, 0.08, 0.02], [0.25, 0.25, 0.25, 0.25], [0.0, 0.5, 0.0, 0.5], [0.1, 0.9]])
@pytest.mark.parametrize("trained_under", ["equal", "skewed"])
def test_a_known_prior_is_recovered(prior: list[float], trained_under: str) -> None:
    truth = np.array(prior)
    logits, labels = gaussians(truth, 5000)
    own = np.full(len(prior), 1 / len(prior)) if trained_under == "equal" else np.arange(1.0, 1 + len(prior)) / sum(range(1 + len(prior)))
    posterior = logits + np.log(own)
    found = estimate_prior(posterior, calibration_of_prior(own))
    np.testing.assert_allclose(found, truth, atol=0.02)
    calibration = calibration_of_prior(own)
    before = float(np.mean(posterior.argmax(axis=1) == labels))
    after = float(np.mean(corrected(posterior, calibration, found).argmax(axis=1) == labels))
    best = float(np.mean((logits + np.log(np.maximum(truth, 1e-12))).argmax(axis=1) == labels))
    assert after >= before - 0.005
    assert after >= best - 0.01


@given(st.integers(0, 1000), st.floats(-5, 5), st.floats(0.2, 5.0))
def test_what_does_not_change_the_classifier_does_not_change_the_prior(seed: int, shift: float, factor: float) -> None:
    logits, _ = gaussians(np.array([0.6, 0.3, 0.1]), 40, seed)
    calibration = Calibration(0.8, np.array([0.3, -0.2, 0.1]))
    found = estimate_prior(logits, calibration)
    shifts = np.random.default_rng(seed).normal(size=(40, 1))
    np.testing.assert_allclose(estimate_prior(logits + shifts, calibration), found, atol=1e-9)  # of a sample's logits
    np.testing.assert_allclose(estimate_prior(logits, Calibration(0.8, calibration.bias + shift)), found, atol=1e-9)  # of all biases
    scaled = Calibration(0.8 / factor, calibration.bias)
    np.testing.assert_allclose(estimate_prior(factor * logits, scaled), found, atol=1e-9)  # of temperature and logits together
    moved = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(estimate_prior(logits + moved, Calibration(0.8, calibration.bias - 0.8 * moved)), found, atol=1e-9)
    order = np.random.default_rng(seed).permutation(3)
    np.testing.assert_allclose(estimate_prior(logits[:, order], Calibration(0.8, calibration.bias[order])), found[order], atol=1e-9)
    np.testing.assert_allclose(estimate_prior(logits[::-1], calibration), found, atol=1e-9)
    twice = corrected(logits, calibration, found)
    assert twice.dtype == np.float64
    np.testing.assert_array_equal(twice.argmax(axis=1), corrected(logits + shifts, calibration, found).argmax(axis=1))


def test_a_class_that_the_support_lacks_stays_possible() -> None:
    logits = np.tile([50.0, 0.0, 0.0], (10, 1))
    found = estimate_prior(logits, plain(3))
    assert (found > 0).all()
    assert found[0] > 0.97
    assert np.isfinite(corrected(np.array([[0.0, 50.0, 0.0]]), plain(3), found)).all()
    assert corrected(np.array([[0.0, 50.0, 0.0]]), plain(3), found).argmax() == 1


@pytest.mark.parametrize("size", [1e3, 1e30, 1e300])
def test_large_logits_do_not_overflow(size: float) -> None:
    found = estimate_prior(np.array([[size, 0.0], [0.0, size], [size, 0.0]]), plain(2))
    np.testing.assert_allclose(found, [2.1 / 3.2, 1.1 / 3.2], atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_prior_is_computed_in_double_precision(dtype: type) -> None:
    logits = np.round(gaussians(np.array([0.6, 0.4]), 50)[0] * 4) / 4  # exact in every dtype
    np.testing.assert_array_equal(estimate_prior(logits.astype(dtype), plain(2)), estimate_prior(logits, plain(2)))


def test_a_training_prior_is_floored() -> None:
    calibration = calibration_of_prior(np.array([0.999, 0.001, 0.0], np.float32), 2.0)
    assert calibration.bias.dtype == np.float64
    np.testing.assert_allclose(calibration.bias, -np.log([0.999, 0.001, 0.001]), rtol=1e-4)
    np.testing.assert_allclose(calibration.apply(np.array([[1.0, 2.0, 3.0]])), 2 * np.array([[1.0, 2.0, 3.0]]) + calibration.bias)


@pytest.mark.parametrize("shape", [(0, 3), (3,), (2, 3, 1), ()])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SampleShapeError, match="logits have the wrong shape"):
        estimate_prior(np.zeros(shape), plain(3))


def test_another_number_of_classes_is_refused() -> None:
    with pytest.raises(SampleShapeError, match="expected 4 classes, got 3"):
        estimate_prior(np.zeros((2, 3)), plain(4))
    with pytest.raises(SampleShapeError, match="expected 1 classes, got 3"):
        estimate_prior(np.zeros((2, 3)), plain(1))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_refused(value: float) -> None:
    logits = np.zeros((4, 3), np.float32)
    logits[2, 1] = value
    with pytest.raises(SampleNotFiniteError, match="NaN or infinite"):
        estimate_prior(logits, plain(3))
