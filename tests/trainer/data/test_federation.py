"""The cut of a data set into participants and new devices."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.federation import Answers, FederatedData, Participant, SplitSettings, split_dataset
from trainer.data.partitions.registry import PARTITIONS


def numbered(samples: int = 400) -> Dataset:
    """Return a data set in which a sample's value is its position, so that its label can be looked up."""
    generator = np.random.default_rng(0)
    labels, domains = generator.integers(0, 3, samples), generator.integers(0, 2, samples)
    return Dataset("made", np.arange(samples, dtype=np.float32)[:, None], labels, ("a", "b", "c"), 0, samples, domains, ("x", "y"))


def all_samples(data: FederatedData) -> np.ndarray:
    parts = [part for each in data.participants for part in (each.samples, each.test_samples, each.validation_samples)]
    parts += [part for each in data.new_devices for part in (each.support, each.query)]
    return np.sort(np.concatenate(parts).ravel())


def test_new_devices_carry_no_labels_and_support_is_bounded() -> None:
    generator = np.random.default_rng(0)
    samples = np.arange(400, dtype=np.uint8).reshape(200, 2)
    dataset = Dataset("made", samples, generator.integers(0, 3, 200), ("a", "b", "c"), 0, 255)
    data, answers = split_dataset(dataset, SplitSettings(2, 3, 0.5, 20, 8, seed=1))
    assert all(len(device.support) <= 8 for device in data.new_devices)
    assert set(answers.query_labels) == {device.device for device in data.new_devices}
    assert not any(hasattr(device, "labels") for device in data.new_devices)
    again, _ = split_dataset(dataset, SplitSettings(2, 3, 0.5, 20, 8, seed=1))
    np.testing.assert_array_equal(data.participants[0].samples, again.participants[0].samples)


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("validation_share", [0.0, 0.25])
def test_every_sample_goes_to_one_place_with_its_label(partition: str, validation_share: float) -> None:
    dataset = numbered()
    settings = SplitSettings(3, 2, 0.5, 30, None, 3, partition=partition, validation_share=validation_share)
    data, answers = split_dataset(dataset, settings)
    np.testing.assert_array_equal(all_samples(data), np.arange(400))
    for each in data.participants:
        for samples, labels in (
            (each.samples, each.labels),
            (each.test_samples, each.test_labels),
            (each.validation_samples, each.validation_labels),
        ):
            np.testing.assert_array_equal(dataset.labels[samples.ravel().astype(int)], labels)
    for device in data.new_devices:
        np.testing.assert_array_equal(dataset.labels[device.support.ravel().astype(int)], answers.support_labels[device.device])
        np.testing.assert_array_equal(dataset.labels[device.query.ravel().astype(int)], answers.query_labels[device.device])


def test_validation_is_the_last_part_of_training_and_changes_nothing_else() -> None:
    settings = SplitSettings(3, 2, 0.5, 30, None, 3)
    plain, _ = split_dataset(numbered(), settings)
    aside, _ = split_dataset(numbered(), dataclasses.replace(settings, validation_share=0.25))
    for before, after in zip(plain.participants, aside.participants, strict=True):
        assert len(after.validation_labels) == len(before.labels) // 4
        np.testing.assert_array_equal(np.concatenate([after.samples, after.validation_samples]), before.samples)
        np.testing.assert_array_equal(after.test_samples, before.test_samples)
        assert before.validation_samples.shape == (0, 1)
    for old, new in zip(plain.new_devices, aside.new_devices, strict=True):
        np.testing.assert_array_equal(old.support, new.support)


def test_support_labels_belong_to_the_bounded_support() -> None:
    data, answers = split_dataset(numbered(), SplitSettings(2, 3, 0.5, 20, 8, seed=1))
    assert [len(answers.support_labels[device.device]) for device in data.new_devices] == [8, 8, 8]


def test_what_older_callers_build_still_fits() -> None:
    empty = np.empty((0, 2), np.uint8), np.empty(0, np.int64)
    assert len(Participant("participant-00", *empty, *empty).validation_labels) == 0
    assert Answers({}).support_labels == {}
    old = {"participants": 5, "new_devices": 5, "concentration": 0.3, "minimum_samples": 60, "support_size": None, "seed": 0}
    assert SplitSettings(**old).partition == "dirichlet"  # type: ignore[arg-type] # as read from JSON


@pytest.mark.parametrize(("count", "first", "last"), [(2, "00", "01"), (100, "00", "99"), (101, "000", "100"), (1000, "000", "999")])
def test_device_names_sort_in_numeric_order(count: int, first: str, last: str) -> None:
    data, answers = split_dataset(numbered(3 * 2 * count + 400), SplitSettings(count, count, 10.0, 3, 8, 0, partition="iid"))
    names = [each.device for each in data.participants]
    assert names == sorted(names)
    assert (names[0], names[-1]) == (f"participant-{first}", f"participant-{last}")
    assert list(answers.query_labels) == sorted(answers.query_labels)
    assert data.new_devices[-1].device == f"new-{last}"


@pytest.mark.parametrize(
    "change",
    [
        {"partition": "nonsense"},
        {"participants": 0},
        {"new_devices": -1},
        {"minimum_samples": -1},
        {"classes_per_client": 0},
        {"seed": -1},
        {"concentration": 0.0},
        {"concentration": float("nan")},
        {"concentration": float("inf")},
        {"validation_share": -0.1},
        {"validation_share": 0.95},
        {"validation_share": float("nan")},
        {"support_size": 0},
    ],
)
def test_wrong_settings_are_named(change: dict) -> None:
    with pytest.raises(DatasetError, match=next(iter(change))):
        dataclasses.replace(SplitSettings(3, 2, 0.5, 30, None, 3), **change)


def test_a_device_without_enough_samples_is_named() -> None:
    with pytest.raises(DatasetError, match=r"participant-0. would have too few samples.*raise minimum_samples"):
        split_dataset(numbered(40), SplitSettings(8, 2, 0.001, 0, None, 0))


@pytest.mark.parametrize(
    ("domains", "names", "word"),
    [
        (None, ("x",), "names domains but assigns none"),
        (np.zeros(3, np.int64), ("x",), "do not fit the samples"),
        (np.zeros(2, np.int64), ("x", "x"), "cannot be told apart"),
        (np.array([0, 1]), ("x",), "has no name"),
        (np.array([0, -1]), ("x",), "has no name"),
    ],
)
def test_domains_that_contradict_themselves_are_refused(domains: np.ndarray | None, names: tuple[str, ...], word: str) -> None:
    with pytest.raises(DatasetError, match=word):
        Dataset("made", np.zeros((2, 1), np.uint8), np.array([0, 1]), ("a", "b"), 0, 255, domains, names)
