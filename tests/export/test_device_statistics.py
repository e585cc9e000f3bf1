from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import AdaptiveClassifier, Bundle
from edge_runtime.drift import DriftMonitor, Reference
from export.device_statistics import drift_block, federation_of, training_samples
from tests.releases import Release

RANDOM = np.random.default_rng(0)


@pytest.fixture
def bundle(release: Release) -> Bundle:
    return Bundle.open(release.bundle, release.trusted)


def test_a_bundle_carries_calibration_drift_and_signature(release: Release, bundle: Bundle) -> None:
    manifest, evaluation = bundle.manifest, release.run.evaluation()
    assert manifest.calibration is not None
    assert manifest.calibration.name == evaluation["calibration"]
    assert list(manifest.calibration.bias) == evaluation["calibration_values"]["bias"]
    assert manifest.drift is not None
    assert manifest.drift.threshold > manifest.drift.release > 0
    assert manifest.distribution_signature is not None
    assert not manifest.distribution_signature.class_frequencies


def test_the_support_size_is_what_new_devices_had(release: Release, bundle: Bundle) -> None:
    sizes = [len(device.support) for device in release.data()[0].new_devices]
    assert bundle.manifest.personalization is not None
    assert bundle.manifest.personalization.support_size == int(np.median(sizes)) < 256


def test_corrected_labels_on_the_device_are_those_of_the_evaluation(release: Release, bundle: Bundle) -> None:
    """The figures of the run's evaluation are what devices reach: the same support, the same correction, the same labels."""
    data, answers = release.data()
    evaluation, classes = release.run.evaluation(), np.array(bundle.manifest.classes)
    for correct, accuracies in ((False, evaluation), (True, evaluation["shifted"])):
        for device in data.new_devices:
            labels = bundle.personalize(device.support, correct=correct).predict(device.query)
            found = float(np.mean(labels == classes[answers.query_labels[device.device]]))
            assert found == pytest.approx(accuracies["new_devices"][device.device], abs=1.5 / len(labels))


def test_signatures_of_participants_are_of_size_one(release: Release, bundle: Bundle) -> None:
    supports = [client.samples for client in release.data()[0].participants]
    signatures = np.stack([bundle.distribution_signature(each) for each in supports])
    assert 1 < np.sqrt((signatures**2).sum(axis=1)).mean() < 4


def test_real_devices_raise_no_alarm_until_their_data_change(release: Release, bundle: Bundle) -> None:
    """Three rounds of training do not tell classes apart well, but a negative from a picture."""
    for device in release.data()[0].new_devices:
        adaptive = AdaptiveClassifier(bundle.personalize(device.support))
        adaptive.observe(RANDOM.permutation(np.concatenate([device.query, device.support, device.support])))
        assert adaptive.monitor.alarms == 0
        adaptive.observe(np.tile(16 - device.query, (8, 1, 1))[:200])
        assert adaptive.monitor.alarms == 1


CLASSES = 6


def made_up_embeddings(mix: np.ndarray, count: int) -> np.ndarray:
    """Return embeddings (count, 6) of samples whose classes show, with noise, in a class mix (6,)."""
    return 0.8 * np.eye(CLASSES)[RANDOM.choice(CLASSES, count, p=mix)] + 0.1 * RANDOM.random((count, CLASSES))


def moved(mix: np.ndarray) -> np.ndarray:
    """Return a class mix at a total variation of 0.5 from another."""
    while True:
        other = RANDOM.dirichlet(np.full(CLASSES, 0.1))
        if (distance := np.abs(mix - other).sum() / 2) >= 0.5:
            return mix + 0.5 / distance * (other - mix)


def test_stationary_streams_raise_no_alarm_and_moved_ones_do_within_two_hundred_samples() -> None:
    """The short form of ``benchmarks/drift.py``, on made-up embeddings of devices that calibration has not seen."""
    mixes = RANDOM.dirichlet(np.full(CLASSES, 0.3), 30)
    block = drift_block([made_up_embeddings(mix, 1500) for mix in mixes[:10]], 256)
    false_alarms = detected = 0
    for mix in np.repeat(mixes[10:], 10, axis=0):
        monitor = DriftMonitor(Reference.of(made_up_embeddings(mix, 256)), block)
        false_alarms += monitor.observe(made_up_embeddings(mix, 1000)).event is not None
        monitor = DriftMonitor(Reference.of(made_up_embeddings(mix, 256)), block)
        detected += monitor.observe(made_up_embeddings(moved(mix), 200)).event is not None or monitor.alarms > 0
    assert false_alarms <= 2  # of 200
    assert detected >= 190


def test_without_the_data_there_is_no_drift_block(release: Release, caplog: pytest.LogCaptureFixture) -> None:
    moved = replace(release.run.config, data="/nowhere/at-all.npz")
    gone = type(release.run)(release.run.path, moved)
    with caplog.at_level(logging.WARNING):
        assert federation_of(gone) is None
    assert "will not notice" in caplog.text


def test_other_data_than_the_run_saw_calibrate_nothing(release: Release, caplog: pytest.LogCaptureFixture) -> None:
    config = release.run.config
    altered = type(release.run)(release.run.path, replace(config, environment={**config.environment, "data": "0" * 16}))
    with caplog.at_level(logging.WARNING):
        assert federation_of(altered) is None
    assert "not those that the run saw" in caplog.text


def test_small_participants_are_left_out(release: Release) -> None:
    data = release.data()[0]
    few = replace(data, participants=tuple(replace(client, samples=client.samples[:63]) for client in data.participants))
    assert training_samples(few) == []
    assert len(training_samples(data)) == len(data.participants)


def test_no_sample_is_in_the_manifest(release: Release) -> None:
    content = json.loads(Path(release.bundle / "manifest.json").read_bytes())
    assert content["drift"].keys() == {"statistic", "window", "threshold", "release", "ridge"}
    assert content["distribution_signature"].keys() == {"features", "pixels", "class_frequencies", "mean", "deviation"}
