"""The local steps of every method: they travel, and a device that runs them changes the state as torch does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from edge_runtime import Bundle
from edge_runtime.training_phase import STATE_FILE
from export.bundling import Extras, export_run
from export.bundling import Release as BundleRelease
from export.training_parts import example_batch, training_parts
from protocol.bundle import open_bundle
from protocol.errors import InputError
from protocol.keys import PrivateKey
from protocol.operators import ALLOWED_OPERATORS
from protocol.tensors import decode_tensors
from tests.releases import train_run
from trainer.data.federation import Participant
from trainer.methods.base import Repeat, Task
from trainer.methods.fedavg import FedAvg
from trainer.methods.registry import METHODS, method_settings

TASK = Task((8, 8), "uint8", 0.0, 255.0, ("a", "b", "c"))
QUICK = ("fedavg", "hyperfedzero")


def client(rows: int = 40) -> Participant:
    generator = np.random.default_rng(0)
    samples, labels = generator.integers(0, 256, (rows, 8, 8)).astype(np.uint8), generator.integers(0, 3, rows)
    return Participant("device-0", samples, labels, samples[:0], labels[:0], samples[:0], labels[:0])


def check(name: str) -> None:
    method = method_settings(name, {"model": "mlp-6"}).bind(TASK)
    own = client()
    told = method.enrol(torch.from_numpy(own.samples), torch.from_numpy(own.labels))
    server = method.initial_state(0, {own.device: told})
    parts = training_parts(method, server, own)
    repeating = [phase for phase in method.phases() if isinstance(phase, Repeat)]
    assert len(parts.graphs) == len(repeating) >= 1
    for spec in parts.graphs.values():
        assert set(spec.operators) <= ALLOWED_OPERATORS
        assert spec.parity.batch_sizes == (2, 3, 7, 17, 64)
    assert decode_tensors(parts.files[STATE_FILE])


@pytest.mark.parametrize("name", QUICK)
def test_steps_travel(name: str) -> None:
    check(name)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name not in QUICK])
def test_steps_of_every_other_method_travel(name: str) -> None:
    check(name)


def test_too_few_samples_to_try_a_step_are_named() -> None:
    method = FedAvg(model="mlp-6").bind(TASK)
    with pytest.raises(InputError, match="at least 7 samples of device-0"):
        training_parts(method, method.initial_state(0), client(3))


def test_a_device_trains_from_its_bundle(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", "fedavg", FedAvg(model="mlp-16"))
    key = PrivateKey.generate()
    export_run(run, tmp_path / "bundle", BundleRelease("trains"), key, extras=Extras(training=True))
    opened = open_bundle(tmp_path / "bundle", key.public)
    state = decode_tensors(opened.files[STATE_FILE])
    session = Bundle.open(tmp_path / "bundle", key.public).session("train_local")
    method = FedAvg(model="mlp-16").bind(run.config.task)
    (phase,) = method.phases()
    assert isinstance(phase, Repeat)
    generator = torch.Generator().manual_seed(0)
    samples = torch.randint(0, 16, (32, *run.config.task.sample_shape), generator=generator).to(getattr(torch, run.config.task.dtype))
    batch = example_batch(phase, samples, torch.randint(0, 10, (32,), generator=generator))
    losses = []
    for _ in range(5):
        feeds = {f"state.{name}": array for name, array in state.items()} | {f"batch.{name}": each.numpy() for name, each in batch.items()}
        outputs = session.run(feeds | {"context.learning_rate": np.array(0.1, np.float32)})
        state = dict(zip(state, outputs, strict=False))
        losses.append(float(outputs[-1]))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.01
