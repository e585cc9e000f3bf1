"""Whether embeddings tell devices apart: measured on embeddings of which the answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.trainer.test_validation import SPLIT, make_dataset
from trainer.data.federation import split_dataset
from trainer.evaluation import Trained
from trainer.health import device_table, embedding_health
from trainer.methods.base import State, Task
from trainer.methods.fedavg import FedAvg, FedAvgMethod

GENERATOR = np.random.default_rng(0)
MIXES = GENERATOR.dirichlet([0.3] * 5, 40)  # (M, C)


def test_embeddings_that_hold_the_class_mix_are_found_to() -> None:
    turned = MIXES @ GENERATOR.normal(size=(5, 8)) + 3.0
    health = embedding_health(turned, MIXES)
    assert health.class_mix_probe > 0.9
    assert 1 < health.effective_dimensions <= 4.5  # a mix of five classes has four dimensions
    assert health.deviation == pytest.approx(turned.std(axis=0).mean())


def test_noise_says_nothing() -> None:
    health = embedding_health(GENERATOR.normal(size=(40, 8)), MIXES)
    assert health.class_mix_probe < 0.2
    assert health.effective_dimensions > 5


def test_devices_that_all_look_alike_say_nothing() -> None:
    health = embedding_health(np.full((40, 8), 0.7), MIXES)
    assert health.deviation == pytest.approx(0.0, abs=1e-12)
    assert health.class_mix_probe == 0.0
    assert np.isfinite(health.effective_dimensions)


def test_one_direction_is_one_dimension() -> None:
    health = embedding_health(np.outer(GENERATOR.normal(size=40), [1.0, 2.0, 3.0]), MIXES)
    assert health.effective_dimensions == pytest.approx(1.0, abs=1e-6)


def test_equal_directions_count_in_full() -> None:
    corners = np.concatenate([np.eye(4), -np.eye(4)])
    assert embedding_health(corners, MIXES[:8]).effective_dimensions == pytest.approx(4.0)


def test_the_probe_is_leave_one_out() -> None:
    """Fit without each device in turn, by hand, and predict it."""
    embeddings, mixes = GENERATOR.normal(size=(6, 3)), MIXES[:6]
    inputs = np.column_stack([embeddings / embeddings.std(), np.ones(6)])
    residuals = []
    for place in range(6):
        rest = np.arange(6) != place
        weights = np.linalg.solve(inputs[rest].T @ inputs[rest] + 0.1 * np.eye(4), inputs[rest].T @ mixes[rest])
        residuals.append(mixes[place] - inputs[place] @ weights)
    expected = 1 - np.square(residuals).sum() / np.square(mixes - mixes.mean(axis=0)).sum()
    assert embedding_health(embeddings, mixes).class_mix_probe == pytest.approx(expected)


def test_the_size_of_embeddings_does_not_matter() -> None:
    embeddings = MIXES @ GENERATOR.normal(size=(5, 3))
    one, other = embedding_health(embeddings, MIXES), embedding_health(1e6 * embeddings, MIXES)
    assert one.class_mix_probe == pytest.approx(other.class_mix_probe)
    assert one.effective_dimensions == pytest.approx(other.effective_dimensions)


class WithEmbedding(FedAvgMethod):
    """FedAvg whose embedding of a device is the mean of its samples."""

    def device_embedding(self, server: State, support: Tensor) -> Tensor | None:
        return support.to(torch.float32).mean(dim=0)


def table_of(kind: type[FedAvgMethod]) -> dict[str, Any]:
    data, answers = split_dataset(make_dataset(), SPLIT)
    method = kind(FedAvg(model="mlp-4"), Task((4,), "float32", 0.0, 600.0, ("a", "b", "c", "d")), torch.float32)
    return device_table(Trained(method, method.initial_state(0), {}, 0), data, answers)


def test_the_table_lists_every_device() -> None:
    data, answers = split_dataset(make_dataset(), SPLIT)
    table = table_of(WithEmbedding)
    devices = table["devices"]
    assert list(devices) == sorted([each.device for each in data.participants] + [each.device for each in data.new_devices])
    for client in data.participants:
        row = devices[client.device]
        assert row["participant"] is True
        assert row["class_counts"] == np.bincount(client.labels, minlength=4).tolist()
        np.testing.assert_allclose(row["embedding"], client.samples.mean(axis=0), rtol=1e-4)
    for device in data.new_devices:
        row = devices[device.device]
        assert row["participant"] is False
        assert row["class_counts"] == np.bincount(answers.query_labels[device.device], minlength=4).tolist()
        np.testing.assert_allclose(row["embedding"], device.support.mean(axis=0), rtol=1e-4)
    assert set(table["embedding_health"]) == {"deviation", "effective_dimensions", "class_mix_probe"}


def test_a_method_without_embeddings_has_no_health() -> None:
    table = table_of(FedAvgMethod)
    assert table["embedding_health"] is None
    assert all(row["embedding"] is None for row in table["devices"].values())
