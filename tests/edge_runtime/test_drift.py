from __future__ import annotations

import numpy as np
import pytest

from edge_runtime.drift import STRIDE, DriftMonitor, DriftStatistic, Reference
from protocol.device_blocks import DriftBlock
from protocol.errors import InputError, SampleNotFiniteError, SampleShapeError

SETTINGS = DriftBlock("mahalanobis", 64, 45.0, 20.0, 0.01)
WIDTH = 4


def embeddings(count: int, shift: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, WIDTH)) * 0.5 + shift


def monitor() -> DriftMonitor:
    return DriftMonitor(Reference.of(embeddings(256)), SETTINGS)


def test_the_statistic_is_that_of_the_formula() -> None:
    reference, rows = Reference.of(embeddings(256)), embeddings(5 * STRIDE, seed=1)
    found = DriftStatistic(reference.mean[None], reference.covariance[None], np.array([256]), SETTINGS)
    for start in range(0, len(rows), STRIDE):
        found.step(rows[None, start : start + STRIDE])
    rate = 2 / 65
    weights = rate * (1 - rate) ** np.arange(len(rows) - 1, -1, -1)
    difference = (1 - rate) ** len(rows) * reference.mean + weights @ rows - reference.mean
    distance = difference @ np.linalg.solve(reference.covariance + 0.01 * np.eye(WIDTH), difference)
    np.testing.assert_allclose(found.value()[0], distance / ((weights**2).sum() + weights.sum() ** 2 / 256), rtol=1e-9)


def test_a_stationary_stream_raises_no_alarm_and_a_moved_one_does() -> None:
    watching = monitor()
    assert watching.observe(embeddings(2000, seed=1)).event is None
    report = watching.observe(embeddings(64, shift=1.0, seed=2))
    assert report.event == "moved"
    assert watching.moved
    assert watching.alarms == 1


def test_one_move_is_one_alarm_and_then_it_settles() -> None:
    watching = monitor()
    events = [watching.observe(rows).event for rows in np.split(embeddings(960, shift=1.0, seed=2), 60)]
    assert [event for event in events if event is not None] in (["moved", "settled"], ["moved", "again", "settled"])
    assert watching.alarms == 1
    assert not watching.moved
    np.testing.assert_allclose(watching.recent().mean, 1.0, atol=0.2)


def test_a_distribution_that_keeps_moving_does_not_settle() -> None:
    watching = monitor()
    moving = embeddings(1024) + 0.01 * np.arange(1024)[:, None]
    events = [watching.observe(rows).event for rows in np.split(moving, 64)]
    assert events.count("moved") == 1
    assert "settled" not in events
    assert events.count("again") > 2


@pytest.mark.parametrize("size", [1, 3, 8, 50, 333])
def test_how_samples_come_in_batches_does_not_matter(size: int) -> None:
    stream = np.concatenate([embeddings(300, seed=1), embeddings(300, shift=0.7, seed=2)])
    whole, pieces = monitor(), monitor()
    whole.observe(stream)
    for start in range(0, len(stream), size):
        pieces.observe(stream[start : start + size])
    assert pieces.statistic == pytest.approx(whole.statistic, rel=1e-9)
    assert (pieces.alarms, pieces.moved, pieces.samples) == (whole.alarms, whole.moved, whole.samples)


def test_memory_is_bounded() -> None:
    watching = monitor()
    for _ in range(50):
        watching.observe(embeddings(100))
    assert watching.recent().count == 256


def test_a_resumed_monitor_goes_on_alike() -> None:
    stopped, resumed = monitor(), monitor()
    stopped.observe(embeddings(160, seed=1))
    resumed.resume(stopped.running_mean, stopped.samples, moved=stopped.moved, alarms=stopped.alarms)
    assert resumed.statistic == pytest.approx(stopped.statistic)
    after = embeddings(160, seed=2)
    assert resumed.observe(after).statistic == pytest.approx(stopped.observe(after).statistic)


def test_a_device_of_one_class_is_not_alarmed_by_one_stray_sample() -> None:
    one = np.tile([1.0, 0.0, 0.0, 0.0], (256, 1)) + 1e-4 * embeddings(256)
    watching = DriftMonitor(Reference.of(one), DriftBlock("mahalanobis", 64, 45.0, 20.0, 0.1))
    stray = np.concatenate([one[:100], [[0.0, 1.0, 0.0, 0.0]], one[:155]])
    assert watching.observe(stray).event is None


def test_bad_embeddings_are_refused() -> None:
    with pytest.raises(SampleShapeError):
        monitor().observe(np.zeros((3, WIDTH + 1)))
    with pytest.raises(SampleNotFiniteError):
        monitor().observe(np.full((3, WIDTH), np.nan))
    with pytest.raises(InputError):
        Reference.of(np.zeros((1, WIDTH)))
