"""A learner on real bundles: it learns, stops when told, goes on to the same bits, and undoes what is not finite."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from edge_runtime import Bundle
from edge_runtime.fit_course import FitOptions
from edge_runtime.fit_folder import RECORD_NAME
from edge_runtime.learner import Learner
from edge_runtime.sampling import ClassIndex, DrawKey
from edge_runtime.trained_classifier import TrainedClassifier
from edge_runtime.training_phase import training_phases
from export.bundling import Extras, export_run
from export.bundling import Release as BundleRelease
from fedtailor import main
from protocol.errors import BundleError, FedtailorError, InputError, LabelError, NumericalError, SampleShapeError
from protocol.keys import PrivateKey
from tests.releases import train_run
from tests.source_tree import ROOT
from trainer.data.datasets import load_dataset
from trainer.methods.registry import method_settings

KEY = PrivateKey(bytes([3] * 32))
LEARNING = {"model": "mlp-6", "learning_rate": 0.1}
Data = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a bundle with training steps of each of three methods."""
    root = tmp_path_factory.mktemp("learner")
    KEY.public.save(root / "release.pub")
    own = {"fedavg": LEARNING, "fedprox": LEARNING, "ditto": LEARNING, "epochs": LEARNING | {"local_epochs": 1, "batch_size": 64}}
    for name, values in own.items():
        method = "fedavg" if name == "epochs" else name
        run = train_run(root / f"run-{name}", method, method_settings(method, values))
        export_run(run, root / name, BundleRelease("digits"), KEY, extras=Extras(training=True))
    return {name: root / name for name in [*own, "release.pub"]}


@pytest.fixture
def bundle(paths: dict[str, Path]) -> Bundle:
    return Bundle.open(paths["fedavg"], KEY.public)


@pytest.fixture(scope="module")
def data() -> Data:
    """Return digits of three classes alone: what one device sees."""
    dataset = load_dataset("digits")
    chosen = np.isin(dataset.labels, (1, 4, 7))
    return np.ascontiguousarray(dataset.samples[chosen][:300]), dataset.labels[chosen][:300].astype(np.int64)


def accuracy(bundle: Bundle, learner: Learner, data: Data) -> float:
    truth = np.array(bundle.manifest.classes)[data[1]]
    return float(np.mean(TrainedClassifier(bundle, learner.state).predict(data[0]) == truth))


def same(one: Learner, other: Learner) -> bool:
    return all(np.array_equal(tensor, other.state[name]) for name, tensor in one.state.items())


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "ditto"])
def test_a_device_gets_better_at_its_own_data(paths: dict[str, Path], data: Data, method: str) -> None:
    bundle = Bundle.open(paths[method], KEY.public)
    learner = Learner(bundle)
    rows, held = (data[0][:200], data[1][:200]), (data[0][200:], data[1][200:])
    before, loss = accuracy(bundle, learner, held), learner.loss(*held)
    result = learner.fit(*rows, steps=192, val=held)
    assert result.steps == 192
    assert result.validation == pytest.approx(learner.loss(*held), rel=1e-5)
    assert learner.loss(*held) < loss
    assert accuracy(bundle, learner, held) > before + 0.05


def test_the_last_batch_of_an_epoch_is_short_and_holds_each_sample_once(paths: dict[str, Path], data: Data) -> None:
    bundle = Bundle.open(paths["epochs"], KEY.public)
    (phase,) = training_phases(bundle)
    samples, labels, key = data[0][:70], data[1][:70], DrawKey(0, 0, "device")
    drawn = phase.draw(key, ClassIndex(labels), 2)
    batches = [phase.batch(drawn, step, samples, labels) for step in range(2)]
    assert [len(batch["labels"]) for batch in batches] == [64, 6]
    seen = np.concatenate([batch["samples"] for batch in batches]).reshape(70, -1)
    assert sorted(map(bytes, seen)) == sorted(map(bytes, samples.reshape(70, -1)))


@pytest.mark.parametrize(("samples", "saved"), [(300, 7), (300, 64), (200, 3)])
def test_an_epoch_runs_through_wherever_states_are_kept(
    paths: dict[str, Path], data: Data, samples: int, saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pass, also those across the 64 steps that are drawn at once, meets each sample once."""
    learner, seen = Learner(Bundle.open(paths["epochs"], KEY.public)), []
    original = learner._phase.batch

    def noted(drawn: dict[str, np.ndarray], step: int, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        seen.append(drawn["places"][step])
        return original(drawn, step, x, y)

    monkeypatch.setattr(learner._phase, "batch", noted)
    per_pass = -(-samples // 64)
    passes = 2 * 64 // per_pass + 1
    learner.fit(data[0][:samples], data[1][:samples], steps=passes * per_pass, options=FitOptions(save_every=saved))
    for number in range(passes):
        places = np.concatenate(seen[number * per_pass : (number + 1) * per_pass])
        assert sorted(places[places >= 0]) == list(range(samples))


def test_before_any_step_the_classifier_is_the_bundles(bundle: Bundle, data: Data) -> None:
    own, brought = TrainedClassifier(bundle, Learner(bundle).state), bundle.personalize(data[0])
    np.testing.assert_allclose(own.logits(data[0]), brought.logits(data[0]), rtol=1e-5, atol=1e-5)


def test_going_on_gives_the_same_bits_as_never_having_stopped(bundle: Bundle, data: Data, tmp_path: Path) -> None:
    whole = Learner(bundle, seed=5)
    whole.fit(*data, steps=150, options=FitOptions(save_every=10))
    for steps in (37, 70, 71, 150):
        Learner(bundle, seed=5, folder=tmp_path).fit(*data, steps=steps, options=FitOptions(save_every=10))
    again = Learner(bundle, seed=5, folder=tmp_path)
    assert again.steps == 150
    assert same(whole, again)
    held = data[0][:40], data[1][:40]
    judged = Learner(bundle, seed=5)
    judged.fit(*data, steps=150, val=held, options=FitOptions(save_every=10))
    parts = Learner(bundle, seed=5)
    for steps in (37, 71, 150):
        parts.fit(*data, steps=steps, val=held, options=FitOptions(save_every=10))
    assert same(judged, parts)
    latest = parts.fit(*data, steps=250)
    assert latest.validation is None
    assert not same(judged, parts)  # without validation the latest state counts
    other = Learner(bundle, seed=6)
    other.fit(*data, steps=150)
    assert not same(whole, other)


def test_the_best_state_by_validation_counts(bundle: Bundle, data: Data, tmp_path: Path) -> None:
    rows, held = (data[0][:200], data[1][:200]), (data[0][200:], data[1][200:])
    learner = Learner(bundle, folder=tmp_path)
    good = learner.fit(*rows, steps=128, val=held)
    wrong = (rows[0], (rows[1] + 1) % 10)  # from here on it learns nonsense
    worse = learner.fit(*wrong, steps=256, val=held)
    assert (worse.best_step, worse.validation) == (good.best_step, good.validation)
    assert learner.loss(*held) == pytest.approx(good.validation, rel=1e-6)
    assert same(Learner(bundle, folder=tmp_path), learner)


def test_time_and_processor_are_kept(bundle: Bundle, data: Data) -> None:
    began = time.monotonic()
    full = Learner(bundle).fit(*data, seconds=0.6)
    assert 0.55 < time.monotonic() - began < 3.0
    worked = time.process_time()
    part = Learner(bundle).fit(*data, seconds=1.5, options=FitOptions(processor_share=0.2))
    worked = time.process_time() - worked
    assert part.steps < full.steps * 1.5 / 0.6
    assert worked < 0.5 * 1.5  # a fifth, and what opening and keeping cost


def test_a_diverging_training_is_brought_back(bundle: Bundle, data: Data, tmp_path: Path) -> None:
    learner = Learner(bundle, folder=tmp_path)
    learner.fit(*data, steps=20)
    good = learner.state
    wild = Learner(bundle, context={"learning_rate": 3e37}, folder=tmp_path)
    with pytest.raises(NumericalError, match="the loss is not finite after step 20"):
        wild.fit(*data, steps=40)
    again = Learner(bundle, folder=tmp_path)
    assert again.steps == 20
    assert all(np.array_equal(tensor, again.state[name]) for name, tensor in good.items())
    assert json.loads((tmp_path / RECORD_NAME).read_text())["restored"] == 3
    result = again.fit(*data, steps=60)
    assert (result.steps, result.restored) == (60, 3)
    assert np.isfinite(result.loss)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda x, y: (x[:0], y[:0]), InputError, "nothing to train on"),
        (lambda x, y: (x, y[:-1]), LabelError, "do not fit"),
        (lambda x, y: (x, y.astype(float)), LabelError, "do not fit"),
        (lambda x, y: (x, y + 10), LabelError, "unknown"),
        (lambda x, y: (x, y - 8), LabelError, "unknown"),
        (lambda x, y: (x[:, :-1], y), SampleShapeError, "shape"),
    ],
)
def test_data_that_do_not_fit_are_refused(bundle: Bundle, data: Data, change: object, error: type[FedtailorError], words: str) -> None:
    with pytest.raises(error, match=words):
        Learner(bundle).fit(*change(*data), steps=1)  # type: ignore[operator]


@pytest.mark.parametrize("budget", [{}, {"steps": 0}, {"seconds": 0.0}, {"seconds": float("nan")}, {"steps": 5, "seconds": -1.0}], ids=str)
def test_a_budget_needs_an_end(bundle: Bundle, data: Data, budget: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"an end|the budget of"):
        Learner(bundle).fit(*data, **budget)  # type: ignore[arg-type]


def test_foreign_and_damaged_folders_are_refused(paths: dict[str, Path], bundle: Bundle, data: Data, tmp_path: Path) -> None:
    Learner(bundle, folder=tmp_path).fit(*data, steps=3)
    with pytest.raises(InputError, match="another training"):
        Learner(bundle, seed=1, folder=tmp_path)
    with pytest.raises(InputError, match="another training"):
        Learner(Bundle.open(paths["fedprox"], KEY.public), folder=tmp_path)
    tensors = next(tmp_path.glob("fit-*.safetensors"))
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InputError, match="altered"):
        Learner(bundle, folder=tmp_path)
    (tmp_path / RECORD_NAME).write_text("{}")
    with pytest.raises(InputError, match="malformed"):
        Learner(bundle, folder=tmp_path)
    with pytest.raises(InputError, match="reads no such number"):
        Learner(bundle, context={"momentum": 0.5})
    with pytest.raises(BundleError, match="which step"):
        Learner(bundle, phase="train_other")


def command(paths: dict[str, Path], folder: Path, out: Path, *words: object) -> list[str]:
    own = ["edge", "fit", paths["fedavg"], folder, "--trusted", paths["release.pub"], "--out", out, *words]
    return [str(word) for word in own]


@pytest.fixture
def folder(data: Data, tmp_path: Path) -> Path:
    """Return a device's data folder."""
    own = tmp_path / "device"
    own.mkdir()
    np.save(own / "support.npy", data[0])
    np.save(own / "labels.npy", data[1])
    return own


def test_the_command_trains_goes_on_and_predicts(paths: dict[str, Path], folder: Path, data: Data, tmp_path: Path) -> None:
    run, out = CliRunner(), tmp_path / "mine"
    first = run.invoke(main, command(paths, folder, out, "--steps", 60, "--validation", 0.25, "--json"))
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert (report["steps"], report["samples"], report["validation_samples"]) == (60, 225, 75)
    refused = run.invoke(main, command(paths, folder, out, "--steps", 90))
    assert refused.exit_code == InputError.exit_code
    assert "--resume" in refused.stderr
    more = run.invoke(main, command(paths, folder, out, "--steps", 200, "--validation", 0.25, "--resume"))
    assert more.exit_code == 0
    assert more.stdout.startswith("200 steps")
    predicted = run.invoke(main, ["edge", "predict", str(out), str(folder / "support.npy"), "--top", "2"])
    lines = [json.loads(line) for line in predicted.stdout.splitlines()]
    truth = [str(label) for label in data[1]]
    assert len(lines) == 300
    assert np.mean([line["label"] == label for line, label in zip(lines, truth, strict=True)]) > 0.95
    assert run.invoke(main, ["edge", "predict", str(out), str(folder / "support.npy"), "--bake"]).exit_code == 2


def test_going_on_with_other_rows_to_choose_by_is_refused(paths: dict[str, Path], folder: Path, data: Data, tmp_path: Path) -> None:
    """Rows that were trained on would otherwise judge."""
    run, out = CliRunner(), tmp_path / "mine"
    words = command(paths, folder, out, "--steps", 20, "--resume")
    assert run.invoke(main, [*words, "--validation", "0.25"]).exit_code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    changed = data[1].copy()
    changed[0] = 4 if changed[0] == 1 else 1
    others = {"share": data, "rows": (data[0][:-1], data[1][:-1]), "labels": (data[0], changed), "order": (data[0][::-1], data[1][::-1])}
    for kind, (samples, labels) in others.items():
        np.save(folder / "support.npy", samples)
        np.save(folder / "labels.npy", labels)
        refused = run.invoke(main, [*words, "--validation", "0.3" if kind == "share" else "0.25"])
        assert (refused.exit_code, "other data" in refused.stderr) == (InputError.exit_code, True), (kind, refused.output)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    np.save(folder / "support.npy", data[0])
    np.save(folder / "labels.npy", data[1])
    assert run.invoke(main, [*words, "--validation", "0.25"]).exit_code == 0


def test_what_is_missing_is_said(paths: dict[str, Path], folder: Path, tmp_path: Path) -> None:
    run = CliRunner()
    assert run.invoke(main, command(paths, folder, tmp_path / "out")).exit_code == 2
    (folder / "labels.npy").unlink()
    result = run.invoke(main, command(paths, folder, tmp_path / "out", "--steps", 1))
    assert result.exit_code == InputError.exit_code
    assert "no labels to learn from" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_state_to_go_on_from(paths: dict[str, Path], folder: Path, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    words = command(paths, folder, whole, "--steps", 1500)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "fedtailor", *words], cwd=ROOT, env=environment, check=True, capture_output=True)
    random = np.random.default_rng(0)
    for _ in range(8):
        again = command(paths, folder, torn, "--steps", 1500, "--resume")
        with subprocess.Popen([sys.executable, "-m", "fedtailor", *again], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as child:
            time.sleep(float(random.uniform(0.4, 1.2)))
            os.kill(child.pid, signal.SIGKILL)
    again = command(paths, folder, torn, "--steps", 1500, "--resume")
    subprocess.run([sys.executable, "-m", "fedtailor", *again], cwd=ROOT, env=environment, check=True, capture_output=True)
    digests = [json.loads((out / RECORD_NAME).read_text())["sha256"] for out in (whole, torn)]
    assert digests[0] == digests[1]
    assert len(list(torn.glob("fit-*.safetensors"))) == 1
