"""From a run to a bundle: labels of new devices never matter, everything is reproducible, the device computes alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_runtime.bundle import Bundle
from export.bundling import Release as BundleRelease
from export.bundling import export_run
from protocol.bundle import open_bundle
from protocol.errors import BundleError, RunFolderError
from protocol.tensors import decode_tensors
from tests.releases import Release, make_release, train_run
from trainer.data.datasets import load_dataset
from trainer.data.federation import NewDevice
from trainer.data.presets import DIGITS
from trainer.evaluation import Trained
from trainer.methods.registry import method_settings
from trainer.runs import Run
from trainer.simulation import Federation


def checkpoint(run: Run) -> bytes:
    return next((run.path / "checkpoints").iterdir()).read_bytes()


def test_a_run_is_reproducible_from_its_seed(release: Release, tmp_path: Path) -> None:
    settings = method_settings("hyperfedzero", DIGITS.methods["hyperfedzero"])
    again = train_run(tmp_path / "again", "hyperfedzero", settings)
    other = train_run(tmp_path / "other", "hyperfedzero", settings, seed=1)
    assert checkpoint(again) == checkpoint(release.run)
    assert checkpoint(other) != checkpoint(release.run)
    assert again.config.identity() != other.config.identity()


def test_noise_for_the_new_devices_labels_changes_no_model_byte(release: Release) -> None:
    # The labels decide the cut, so the cut is made first; what lies in the answers is then replaced.
    settings = method_settings("hyperfedzero", DIGITS.methods["hyperfedzero"])
    federation = Federation(settings, load_dataset("digits"), seed=0)
    generator = np.random.default_rng(0)
    for labels in federation.answers.query_labels.values():
        labels[:] = generator.integers(0, 10, len(labels))
    fitted = federation.fit(3)
    state = release.run.final_state()
    assert all(np.array_equal(tensor.numpy(), state[name].numpy()) for name, tensor in fitted.state.items())
    for device in fitted.data.new_devices:
        assert not any("label" in name for name in vars(device))
    assert fitted.evaluate().plain.zacc < 0.3  # so the noise did reach the scoring


def trainer_labels(run: Run, device: NewDevice) -> np.ndarray:
    """What the method itself says of a device's query samples, class indices (Q,)."""
    method = method_settings(run.config.method, run.config.settings).bind(run.config.task)
    trained = Trained(method, run.final_state(), {}, run.config.seed)
    return trained.logits(trained.predictor(device.device, device.support, None), device.query).argmax(axis=1)


def test_the_device_predicts_what_the_trainer_predicts(release: Release) -> None:
    bundle = Bundle.open(release.bundle, release.trusted)
    data, _ = release.data()
    for device in data.new_devices:
        ours = bundle.personalize(device.support).logits(device.query).argmax(axis=1)
        np.testing.assert_array_equal(ours, trainer_labels(release.run, device))


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    [
        {"scope": "sample"},
        {"tailored": "head"},
        {"tailored": "none", "base": True, "prior": "read"},
        {"tailored": "whole", "base": True, "prior": "read", "balanced_softmax": 1.0},
        {"tailored": "input"},
        {"noise": True, "label_weight": 0.0, "prior": "none", "base": False},
    ],
)
def test_every_variant_travels_to_the_device(tmp_path: Path, values: dict[str, Any]) -> None:
    made = make_release(tmp_path, **values)
    bundle = Bundle.open(made.bundle, made.trusted)
    device = made.data()[0].new_devices[0]
    classifier = bundle.personalize(device.support)
    np.testing.assert_array_equal(classifier.logits(device.query).argmax(axis=1), trainer_labels(made.run, device))
    classifier.save(tmp_path / "mine")
    reopened = type(classifier).open(tmp_path / "mine")
    np.testing.assert_array_equal(reopened.predict(device.query), classifier.predict(device.query))


def test_a_fedavg_run_makes_a_bundle_that_runs_everywhere_alike(release: Release, tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", "fedavg", method_settings("fedavg", {"model": DIGITS.model}))
    export_run(run, tmp_path / "bundle", BundleRelease("plain"), release.release_key)
    bundle = Bundle.open(tmp_path / "bundle", release.trusted)
    data, _ = release.data()
    query = data.new_devices[0].query
    first, second = (bundle.personalize(device.support).predict(query) for device in data.new_devices[:2])
    np.testing.assert_array_equal(first, second)


def test_the_bundle_carries_golden_samples_and_a_card(release: Release) -> None:
    opened = open_bundle(release.bundle, release.release_key.public)
    golden = decode_tensors(opened.files["selftest.safetensors"])
    bundle = Bundle.open(release.bundle, release.trusted)
    samples: Any = golden["samples"]
    expected: dict[str, Any] = dict(golden)
    np.testing.assert_allclose(bundle.embed(samples), expected["embedding"], atol=1e-6)
    np.testing.assert_allclose(bundle.personalize(samples).logits(samples), expected["logits"], atol=1e-4)
    assert b"zACC" in opened.files["README.md"]
    assert opened.manifest.method.phases[0]["draw"]["policy"] == "EpisodeBatches"
    assert opened.manifest.minimum_onnxruntime == "1.19"
    for graph in opened.manifest.graphs.values():
        assert [each.output for each in graph.parity.worst_by_output] == [output.name for output in graph.outputs]


def test_an_existing_bundle_is_not_overwritten_unasked(release: Release) -> None:
    before = (release.bundle / "manifest.json").read_bytes()
    with pytest.raises(BundleError, match="--overwrite"):
        export_run(release.run, release.bundle, BundleRelease("again"), release.release_key)
    assert (release.bundle / "manifest.json").read_bytes() == before


def test_an_unfinished_run_is_refused(release: Release, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", replace(release.run.config, rounds=99))
    with pytest.raises(RunFolderError, match="no final checkpoint"):
        export_run(run, tmp_path / "bundle", BundleRelease("x"), release.release_key)
    assert not (tmp_path / "bundle").exists()
