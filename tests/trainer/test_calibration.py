"""Calibrations fitted on participants: known temperatures and priors come back, and the best one is chosen."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import InputError
from trainer.calibration import CALIBRATIONS, CalibrationData, Candidates, candidates

CLASSES = 3
CENTRES = np.array([[0.0, 0.0], [1.8, 0.0], [0.0, 1.8]])  # (C, D)
Array = NDArray[np.float64]


def participant(mix: Array, prior: Array, temperature: float, samples: int, generator: np.random.Generator) -> CalibrationData:
    """Return what a classifier that was trained under ``prior`` says, its logits ``temperature`` times too large."""

    def draw() -> tuple[Array, NDArray[np.int64]]:
        labels = generator.choice(CLASSES, samples, p=mix)
        points = CENTRES[labels] + generator.normal(size=(samples, 2))  # (N, D)
        return temperature * (-0.5 * ((points[:, None] - CENTRES) ** 2).sum(axis=2) + np.log(prior)), labels

    support, own = draw()
    logits, labels = draw()
    return CalibrationData(support, logits, labels, np.bincount(own, minlength=CLASSES))


def participants(prior: Array, temperature: float, samples: int = 2000) -> list[CalibrationData]:
    generator = np.random.default_rng(4)
    mixes = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]]
    return [participant(np.array(mix), prior, temperature, samples, generator) for mix in mixes]


EQUAL, SKEWED = np.full(CLASSES, 1 / 3), np.array([0.7, 0.25, 0.05])


@pytest.mark.parametrize("temperature", [0.25, 1.0, 6.0])
def test_the_temperature_comes_back(temperature: float) -> None:
    found = candidates(participants(EQUAL, temperature)).calibrations
    assert found["uniform"].scale == pytest.approx(1 / temperature, rel=0.06)
    assert found["fitted"].scale == pytest.approx(1 / temperature, rel=0.06)
    assert np.ptp(found["uniform"].bias) == 0


@pytest.mark.parametrize("name", ["fitted", "balanced"])
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_a_known_training_prior_comes_back_as_biases(name: str, temperature: float) -> None:
    calibration = candidates(participants(SKEWED, temperature)).calibrations[name]
    bias = calibration.bias - calibration.bias.mean()
    expected = -np.log(SKEWED) + np.log(SKEWED).mean()
    np.testing.assert_allclose(bias, expected, atol=0.15)


def test_pooled_takes_the_participants_frequencies() -> None:
    people = participants(EQUAL, 1.0)
    counts = np.sum([each.class_counts for each in people], axis=0)
    np.testing.assert_allclose(candidates(people).calibrations["pooled"].bias, -np.log(counts / counts.sum()))


def test_all_candidates_are_there_and_scored_by_what_they_correct() -> None:
    found = candidates(participants(SKEWED, 1.0))
    assert set(found.calibrations) == set(found.scores) == set(CALIBRATIONS)
    assert all(0 < score <= 1 for score in found.scores.values())
    assert found.scores["fitted"] > found.scores["uniform"]  # which takes the skewed classifier for a fair one
    name, calibration = found.choose(("uniform", "fitted"))
    assert (name, calibration) == ("fitted", found.calibrations["fitted"])


def test_participants_are_tiny_or_have_one_class() -> None:
    generator = np.random.default_rng(0)
    people = [
        participant(np.array([1.0, 0.0, 0.0]), SKEWED, 1.0, 1, generator),
        participant(np.array([0.0, 1.0, 0.0]), SKEWED, 1.0, 2, generator),
    ]
    for calibration in candidates(people).calibrations.values():
        assert 0 < calibration.scale < np.inf
        assert np.isfinite(calibration.bias).all()


def test_a_classifier_that_is_always_right_or_always_wrong_gives_numbers() -> None:
    labels = np.arange(60) % CLASSES
    sure = 40.0 * np.eye(CLASSES)[labels]
    for logits in (sure, -sure, np.zeros_like(sure), 1e4 * sure):
        people = [CalibrationData(logits, logits, labels, np.bincount(labels, minlength=CLASSES))]
        found = candidates(people)
        for name, calibration in found.calibrations.items():
            assert 0 < calibration.scale < np.inf, name
            assert np.isfinite(calibration.bias).all(), name
            assert np.isfinite(found.scores[name])
    assert candidates([CalibrationData(sure, sure, labels, np.bincount(labels))]).scores["uniform"] == 1.0


def made_up() -> Candidates:
    found = candidates(participants(EQUAL, 1.0, 20))
    return Candidates(found.calibrations, {"uniform": 0.5, "pooled": 0.9, "fitted": 0.7, "balanced": 0.9})


def test_the_best_of_the_allowed_is_chosen() -> None:
    found = made_up()
    assert found.choose(CALIBRATIONS)[0] == "pooled"
    assert found.choose(("balanced", "pooled"))[0] == "balanced"  # the first of equals
    assert found.choose(("uniform",)) == ("uniform", found.calibrations["uniform"])
    assert found.choose(("uniform", "fitted"))[0] == "fitted"
    assert found.choose(("uniform", "fitted"), {"uniform": 0.4, "fitted": 0.3})[0] == "uniform"


@pytest.mark.parametrize(("allowed", "got"), [(("uniform", "magic"), "got magic"), ((), "got none")])
def test_others_are_refused(allowed: tuple[str, ...], got: str) -> None:
    with pytest.raises(InputError, match=f"correction is unknown: expected uniform or pooled or fitted or balanced, {got}"):
        made_up().choose(allowed)
