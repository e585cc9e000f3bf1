from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import Bundle
from edge_runtime.adaptive import AdaptiveClassifier
from protocol.device_blocks import CalibrationBlock, DriftBlock
from protocol.errors import BundleError
from protocol.keys import PrivateKey
from tests.edge_runtime.tiny import logits, raw_samples, write_tiny

DRIFT = DriftBlock("mahalanobis", 32, 60.0, 30.0, 0.01)
CALIBRATION = CalibrationBlock("fitted", 1.5, (0.1, -0.2, 0.3))
SUPPORT = raw_samples(64, seed=1)
BRIGHT = np.maximum(raw_samples(400, seed=2), 200) * np.array([[0, 1], [1, 0]], np.uint8)  # another distribution


@pytest.fixture
def drifting(tmp_path: Path, release_key: PrivateKey) -> Bundle:
    return Bundle.open(write_tiny(tmp_path / "bundle", release_key, drift=DRIFT, calibration=CALIBRATION), release_key.public)


def test_after_a_move_the_classifier_is_that_of_the_new_distribution(drifting: Bundle) -> None:
    adaptive = AdaptiveClassifier(drifting.personalize(SUPPORT))
    first = adaptive.classifier
    adaptive.predict(raw_samples(400, seed=3))
    assert adaptive.classifier is first
    for place in range(0, 400, 10):
        adaptive.predict(BRIGHT[place : place + 10])
    assert adaptive.monitor.alarms == 1
    assert not adaptive.monitor.moved
    np.testing.assert_allclose(adaptive.classifier.logits(BRIGHT[:5]), logits(BRIGHT, BRIGHT[:5], "device"), rtol=0.05, atol=0.05)
    assert np.abs(first.logits(BRIGHT[:5]) - logits(BRIGHT, BRIGHT[:5], "device")).max() > 0.05


@pytest.mark.parametrize("bake", [False, True])
def test_correction_and_baking_outlive_a_move(drifting: Bundle, bake: bool) -> None:
    adaptive = AdaptiveClassifier(drifting.personalize(SUPPORT, correct=True, bake=bake))
    before = adaptive.classifier.tailored.correction
    adaptive.predict(BRIGHT)
    after = adaptive.classifier.tailored.correction
    assert adaptive.classifier.baked is bake
    assert before is not None
    assert after is not None
    assert not np.allclose(before.shift, after.shift, atol=1e-3)


def test_the_monitor_is_saved_and_goes_on(drifting: Bundle, tmp_path: Path) -> None:
    adaptive = AdaptiveClassifier(drifting.personalize(SUPPORT))
    adaptive.observe(raw_samples(40, seed=3))
    adaptive.save(tmp_path / "mine")
    opened = AdaptiveClassifier.open(tmp_path / "mine", drifting)
    assert (opened.monitor.samples, opened.monitor.alarms) == (40, 0)
    assert opened.monitor.statistic == pytest.approx(adaptive.monitor.statistic, rel=1e-3)
    opened.observe(BRIGHT)
    assert opened.monitor.alarms == 1


def test_a_bundle_without_a_drift_block_is_not_watched(bundle: Bundle) -> None:
    with pytest.raises(BundleError, match="moved"):
        AdaptiveClassifier(bundle.personalize(SUPPORT))


def test_threads_may_share_it(drifting: Bundle) -> None:
    adaptive = AdaptiveClassifier(drifting.personalize(SUPPORT))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(adaptive.predict, [BRIGHT[place : place + 8] for place in range(0, 400, 8)]))
    assert all(len(labels) == 8 for labels in found)
    assert adaptive.monitor.alarms == 1
