"""A real, small release for tests: keys, a run of a few rounds on the digits, a signed bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from export.bundling import Origin, bundle_from_parts, export_run
from export.bundling import Release as BundleRelease
from protocol.bundle import write_bundle
from protocol.keys import PrivateKey
from protocol.manifest import MethodEntry, Personalization
from trainer.data.datasets import load_dataset
from trainer.data.federation import Answers, FederatedData, split_dataset
from trainer.data.presets import DIGITS
from trainer.experiments import Experiment
from trainer.methods.base import MethodSettings, Task
from trainer.methods.hyperfedzero import HyperFedZero
from trainer.methods.registry import method_settings, settings_as_values
from trainer.runs import Run
from trainer.training import Training

ROUNDS = 3


@dataclass(frozen=True)
class Release:
    """Where everything lies."""

    root: Path
    bundle: Path
    run: Run
    release_key: PrivateKey
    coordinator_key: PrivateKey

    @property
    def trusted(self) -> Path:
        return self.root / "release.pub"

    def data(self) -> tuple[FederatedData, Answers]:
        return split_dataset(load_dataset("digits"), self.run.config.split)


def make_release(root: Path, **values: object) -> Release:
    """Train a few rounds, export and sign; ``values`` are settings of HyperFedZero."""
    release_key, coordinator_key = PrivateKey.generate(), PrivateKey.generate()
    release_key.public.save(root / "release.pub")
    release_key.save(root / "release.key")
    coordinator_key.save(root / "coordinator.key")
    settings = method_settings("hyperfedzero", {**DIGITS.methods["hyperfedzero"], **values})
    run = train_run(root / "run", "hyperfedzero", settings)
    export_run(run, root / "bundle", BundleRelease("digits", coordinator_key=coordinator_key.public.hex), release_key)
    return Release(root, root / "bundle", run, release_key, coordinator_key)


def train_run(folder: Path, method: str, settings: MethodSettings, seed: int = 0) -> Run:
    """Train a few rounds on the digits into a run folder."""
    experiment = Experiment(data="digits", rounds=ROUNDS, engine="cohort", methods={method: settings_as_values(settings)})
    training = Training.start(experiment, method, seed, folder)
    training.finish()
    return training.run


def write_untrained(folder: Path, model: str, key: PrivateKey) -> Path:
    """Write a HyperFedZero bundle for grey 28 x 28 images whose weights are freshly drawn: what it costs does not depend on them."""
    task = Task((28, 28), "uint8", 0.0, 255.0, tuple("abcdefghij"))
    method = HyperFedZero(model=model).bind(task)
    way = Personalization("device", 256, method.embedding_size, "whole")
    origin = Origin(MethodEntry("hyperfedzero", {}, ()), task, way, 1_700_000_000, {})
    manifest, files = bundle_from_parts(method.parts(method.initial_state(0)), origin, BundleRelease(model))
    write_bundle(folder, manifest, {**files, "README.md": b"untrained"}, key)
    return folder
