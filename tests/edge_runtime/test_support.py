from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import Bundle, Classifier
from edge_runtime.label_shift import Calibration, corrected, estimate_prior
from edge_runtime.personal_folder import RECORD_NAME
from edge_runtime.support import EmbeddingStatistics, SupportStatistics, advice
from protocol.device_blocks import CalibrationBlock
from protocol.errors import InputError
from protocol.keys import PrivateKey
from protocol.manifest import Personalization, RawInput
from tests.edge_runtime.tiny import Scope, logits, raw_samples, write_tiny

SUPPORT, QUERY = raw_samples(64, seed=1), raw_samples(30, seed=2)
UNIT = RawInput("float32", (4,), 0.0, 1.0, "four numbers")
WAY = Personalization("device", 8, 3, "whole")
BLOCK = CalibrationBlock("fitted", 1.5, (0.1, -0.2, 0.3))


@pytest.fixture
def calibrated(tmp_path: Path, release_key: PrivateKey) -> Bundle:
    return Bundle.open(write_tiny(tmp_path / "bundle", release_key, calibration=BLOCK), release_key.public)


def test_statistics_do_not_depend_on_batches() -> None:
    rows = np.random.default_rng(0).standard_normal((100, 5)).astype(np.float32)
    found = EmbeddingStatistics()
    for start in range(0, 100, 7):
        found.add(rows[start : start + 7])
    np.testing.assert_allclose(found.mean(), rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(found.covariance(), np.cov(rows.T, bias=True), atol=1e-6)


@pytest.mark.parametrize(
    ("low", "high", "count", "words"),
    [
        (0.0, 255.0, 64, "0 to 255, the bundle takes 0 to 1"),
        (-1.0, 1.0, 64, "-1 to 1, the bundle takes 0 to 1"),
        (0.0, 0.003, 64, "only: were they normalised"),
        (0.0, 1.0, 3, "from 3 samples: this bundle was evaluated with 8"),
    ],
)
def test_samples_that_may_not_serve_are_pointed_out(low: float, high: float, count: int, words: str) -> None:
    (sentence,) = advice(SupportStatistics(count, low, high), UNIT, WAY)
    assert words in sentence


def test_good_samples_get_no_advice(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    assert bundle.personalize(SUPPORT).advice == ()
    assert caplog.records == []


def test_advice_is_logged_and_kept(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        classifier = bundle.personalize(SUPPORT[:3] // 200)
    assert len(classifier.advice) == 1
    assert [record.message for record in caplog.records] == list(classifier.advice)


@pytest.mark.parametrize("bake", [False, True])
def test_correction_is_that_of_the_formula(calibrated: Bundle, bake: bool) -> None:
    calibration = Calibration(BLOCK.scale, np.array(BLOCK.bias))
    prior = estimate_prior(logits(SUPPORT, SUPPORT, "device"), calibration)
    expected = corrected(logits(SUPPORT, QUERY, "device"), calibration, prior)
    classifier = calibrated.personalize(SUPPORT, correct=True, bake=bake)
    np.testing.assert_allclose(classifier.logits(QUERY), expected, rtol=1e-3, atol=1e-3)
    probabilities = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(classifier.predict_proba(QUERY), probabilities, atol=1e-4)


def test_a_corrected_classifier_is_saved_and_opened(calibrated: Bundle, tmp_path: Path) -> None:
    classifier = calibrated.personalize(SUPPORT, correct=True)
    classifier.save(tmp_path / "mine")
    np.testing.assert_array_equal(Classifier.open(tmp_path / "mine", calibrated).logits(QUERY), classifier.logits(QUERY))
    record = tmp_path / "mine" / RECORD_NAME
    record.write_text(record.read_text().replace("1.5", "null"))
    with pytest.raises(InputError, match="half a correction"):
        Classifier.open(tmp_path / "mine", calibrated)


def test_correction_reads_an_iterator_once(calibrated: Bundle) -> None:
    expected = calibrated.personalize(SUPPORT, correct=True).logits(QUERY)
    np.testing.assert_allclose(calibrated.personalize(iter(SUPPORT), correct=True).logits(QUERY), expected, atol=1e-5)


@pytest.mark.parametrize("scope", ["sample", None])
def test_any_scope_can_be_corrected(tmp_path: Path, release_key: PrivateKey, scope: Scope | None) -> None:
    opened = Bundle.open(write_tiny(tmp_path / "bundle", release_key, scope, calibration=BLOCK), release_key.public)
    plain, fixed = opened.personalize(SUPPORT), opened.personalize(SUPPORT, correct=True)
    difference = fixed.logits(QUERY) - BLOCK.scale * plain.logits(QUERY)
    np.testing.assert_allclose(difference, np.tile(difference[0], (len(QUERY), 1)), atol=1e-4)  # a shift of each class, nothing else
    assert np.ptp(difference[0]) > 0.1


def test_without_a_calibration_nothing_is_corrected(bundle: Bundle) -> None:
    with pytest.raises(InputError, match="calibration"):
        bundle.personalize(SUPPORT, correct=True)


def test_saved_tensors_of_other_shapes_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    made = bundle.personalize(SUPPORT)
    Classifier(bundle, replace(made.tailored, covariance=np.eye(4, dtype=np.float32))).save(tmp_path)
    with pytest.raises(InputError, match="does not fit"):
        Classifier.open(tmp_path, bundle)
