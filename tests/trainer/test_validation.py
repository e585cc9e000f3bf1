"""Made-up devices come from validation samples alone; what is chosen by them sees nothing of a new device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainer.data.dataset import Dataset
from trainer.data.federation import Answers, FederatedData, SplitSettings, split_dataset
from trainer.evaluation import Trained, evaluate
from trainer.methods.base import Task
from trainer.methods.fedavg import FedAvg
from trainer.validation import DEVICES, SAMPLES, MadeUpDevice, made_up_devices

SPLIT = SplitSettings(4, 2, 0.5, 20, None, 5, validation_share=0.2)


def make_dataset() -> Dataset:
    """Return samples that tell who they are: the first value is the sample's number, the second its class."""
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 4, 600)
    samples = np.stack([np.arange(600.0), labels, *generator.normal(size=(2, 600))], axis=1).astype(np.float32)
    return Dataset("numbered", samples, labels, ("a", "b", "c", "d"), 0.0, 600.0)


@pytest.fixture(scope="module")
def split() -> tuple[FederatedData, Answers]:
    return split_dataset(make_dataset(), SPLIT)


def numbers(samples: np.ndarray) -> set[int]:
    return set(samples[:, 0].astype(int).tolist())


def test_made_up_devices_hold_nothing_but_validation_samples(split: tuple[FederatedData, Answers]) -> None:
    data, _ = split
    aside = set().union(*(numbers(client.validation_samples) for client in data.participants))
    others = [each for client in data.participants for each in (client.samples, client.test_samples)]
    others += [each for device in data.new_devices for each in (device.support, device.query)]
    assert not aside & set().union(*map(numbers, others))
    devices = made_up_devices(data, SPLIT)
    assert [each.device for each in devices] == [f"made-up-{place:02d}" for place in range(DEVICES)]
    for device in devices:
        assert device.support.shape == device.query.shape == (SAMPLES, 4)
        assert numbers(device.support) | numbers(device.query) <= aside
        np.testing.assert_array_equal(device.support[:, 1], device.support_labels)
        np.testing.assert_array_equal(device.query[:, 1], device.query_labels)


def shares(devices: list[MadeUpDevice]) -> np.ndarray:
    return np.stack([np.bincount(each.support_labels, minlength=4) / SAMPLES for each in devices])


def test_their_class_mixes_are_as_skewed_as_the_cut(split: tuple[FederatedData, Answers]) -> None:
    data, _ = split
    mild, wild = (shares(made_up_devices(data, replace(SPLIT, concentration=each))).max(axis=1).mean() for each in (100.0, 0.05))
    assert mild < 0.4
    assert wild > 0.8
    query = [np.bincount(each.query_labels, minlength=4) / SAMPLES for each in made_up_devices(data, SPLIT)]
    np.testing.assert_allclose(shares(made_up_devices(data, SPLIT)), np.stack(query), atol=0.2)  # one mix for both parts


def test_the_same_seed_makes_the_same_devices(split: tuple[FederatedData, Answers]) -> None:
    data, _ = split
    first, second = made_up_devices(data, SPLIT), made_up_devices(data, SPLIT)
    for one, two in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.support, two.support)
        np.testing.assert_array_equal(one.query, two.query)
    assert not np.array_equal(first[0].support, made_up_devices(data, replace(SPLIT, seed=6))[0].support)


def test_without_validation_samples_there_are_none(split: tuple[FederatedData, Answers]) -> None:
    data, _ = split_dataset(make_dataset(), replace(SPLIT, validation_share=0.0))
    assert made_up_devices(data, SPLIT) == []
    full, _ = split
    mixed = replace(full, participants=(full.participants[0], *data.participants[1:]))
    own = numbers(full.participants[0].validation_samples)
    assert all(numbers(each.support) <= own for each in made_up_devices(mixed, SPLIT))


def test_the_choice_does_not_look_at_new_devices(split: tuple[FederatedData, Answers]) -> None:
    data, answers = split
    method = FedAvg(model="mlp-4").bind(Task((4,), "float32", 0.0, 600.0, ("a", "b", "c", "d")))
    trained = Trained(method, method.initial_state(0), {}, 0)
    found = evaluate(trained, data, answers, SPLIT)
    wrong = Answers({name: (each + 1) % 4 for name, each in answers.query_labels.items()}, answers.support_labels)
    other = evaluate(trained, data, wrong, SPLIT)
    assert found.plain.zacc != other.plain.zacc
    assert found.calibration == other.calibration
    assert (found.validation, found.validation_shifted) == (other.validation, other.validation_shifted)
    assert {name: each["judged"] for name, each in found.candidates.items()} == {
        name: each["judged"] for name, each in other.candidates.items()
    }
    assert found.calibration == max(found.candidates, key=lambda name: found.candidates[name]["judged"])
    assert sum(map(sum, found.confusion)) == sum(map(len, answers.query_labels.values()))


def test_without_new_devices_their_accuracy_is_no_number() -> None:
    settings = replace(SPLIT, new_devices=0, validation_share=0.0)
    data, answers = split_dataset(make_dataset(), settings)
    method = FedAvg(model="mlp-4").bind(Task((4,), "float32", 0.0, 600.0, ("a", "b", "c", "d")))
    found = evaluate(Trained(method, method.initial_state(0), {}, 0), data, answers, settings)
    assert np.isnan(found.plain.zacc)
    assert found.plain.new_devices == {}
    assert found.validation is None
    assert found.validation_shifted is None
    assert 0 <= found.plain.pacc <= 1
    assert found.calibration in found.candidates
