"""The command line as a person meets it: each fault one sentence, its own exit code, nothing changed."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from protocol import errors
from protocol.keys import PrivateKey
from tests.releases import Release

ROOT = Path(__file__).resolve().parents[1]


def fedtailor(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedtailor", *map(str, words)]
    environment_path = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=cwd or ROOT, env=environment_path, capture_output=True, text=True, check=False, timeout=120)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Case:
    """A folder in which everything is right, until a test makes one thing wrong."""

    def __init__(self, release: Release, root: Path) -> None:
        self.root = root
        self.bundle = Path(shutil.copytree(release.bundle, root / "bundle"))
        self.trusted = Path(shutil.copy(release.trusted, root / "release.pub"))
        device = release.data()[0].new_devices[0]
        self.good = device.support
        self.samples = root / "samples.npy"
        np.save(self.samples, self.good)

    def personalize(self, *more: str) -> subprocess.CompletedProcess[str]:
        words = [self.bundle, self.samples, "--trusted", self.trusted, "--out", self.root / "mine", *more]
        return fedtailor("edge", "personalize", *words)


@pytest.fixture
def case(release: Release, tmp_path: Path) -> Case:
    return Case(release, tmp_path)


def flip_a_byte(case: Case) -> None:
    path = case.bundle / "graphs" / "classify.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def add_a_file(case: Case) -> None:
    (case.bundle / "extra.bin").write_bytes(b"x")


def trust_another_key(case: Case) -> None:
    case.trusted.unlink()
    PrivateKey.generate().public.save(case.trusted)


FAULTS = {
    "flipped byte": (flip_a_byte, errors.BundleFileError),
    "extra file": (add_a_file, errors.UnlistedFileError),
    "wrong key": (trust_another_key, errors.BundleSignatureError),
    "wrong shape": (lambda case: np.save(case.samples, case.good[:, :5]), errors.SampleShapeError),
    "wrong dtype": (lambda case: np.save(case.samples, case.good.astype(np.float32)), errors.SampleDtypeError),
    "nan": (lambda case: np.save(case.samples, np.full(case.good.shape, np.nan, np.float32)), errors.SampleNotFiniteError),
    "empty": (lambda case: np.save(case.samples, case.good[:0]), errors.EmptySupportSetError),
    "no key file": (lambda case: case.trusted.unlink(), errors.KeyFileError),
    "no bundle": (lambda case: shutil.rmtree(case.bundle), errors.BundleFileError),
    "no samples": (lambda case: case.samples.unlink(), errors.InputError),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_one_sentence_and_its_own_code(case: Case, name: str) -> None:
    make_wrong, kind = FAULTS[name]
    make_wrong(case)
    before = snapshot(case.root)
    for more in ((), ("--json",)):
        result = case.personalize(*more)
        assert result.returncode == kind.exit_code, result.stderr
        assert "Traceback" not in result.stderr
        if more:
            content = json.loads(result.stdout)
            assert content["error"] == kind.__name__
            assert content["exit_code"] == kind.exit_code
        else:
            assert result.stderr.startswith("error: ")
            assert result.stderr.count("\n") == 1
    assert snapshot(case.root) == before
    assert not (case.root / "mine").exists()


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.FedtailorError)]
    codes = [kind.exit_code for kind in kinds]
    assert len(set(codes)) == len(codes)
    assert len(codes) > 30
    documented = errors.__doc__ or ""
    assert all(f"{kind.__name__} " in documented and f" {kind.exit_code}" in documented for kind in kinds)


def test_the_good_way_prints_json_lines(case: Case) -> None:
    made = case.personalize("--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["samples"] == len(case.good)
    lines = fedtailor("edge", "predict", case.root / "mine", case.samples).stdout.splitlines()
    assert len(lines) == len(case.good)
    first = json.loads(lines[0])
    assert first["sample"] == "0"
    assert first["label"] in "0123456789"
    assert 0 < first["probability"] <= 1


def test_an_unreachable_broker_ends_by_the_deadline(case: Case) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    folder = case.root / "device"
    folder.mkdir()
    for name in ("support", "query"):
        np.save(folder / f"{name}.npy", case.good)
    PrivateKey.generate().save(case.root / "pi.key")
    words = ["--bundle", case.bundle, "--trusted", case.trusted, "--device", "pi", "--key", case.root / "pi.key", "--state", folder]
    started = time.monotonic()
    result = fedtailor("edge", "run", *words, "--data", folder, "--broker", f"mqtt://127.0.0.1:{port}", "--deadline", "3")
    assert result.returncode == errors.BrokerUnreachableError.exit_code, result.stderr
    assert time.monotonic() - started < 15
    advice, error = result.stderr.splitlines()  # the support set is smaller than the bundle's evaluation had, and that is said too
    assert advice.startswith("personalised from")
    assert error.startswith("error: no connection to mqtt://")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["train", "fedavg", "--data", "nowhere"], errors.DatasetError),
        (["train", "hyperfedzero", "--set", "nonsense=1"], errors.InputError),
        (["train", "hyperfedzero", "--set", "local_steps=wide"], errors.InputError),
        (["train", "hyperfedzero", "--set", "scope=planet"], errors.InputError),
        (["train", "hyperfedzero", "--set", "local_steps"], errors.InputError),
        (["train", "hyperfedzero", "--set", "local_steps=-1"], errors.InputError),
        (["train", "hyperfedzero", "--set", "local_steps=999999999999"], errors.InputError),
        (["train", "hyperfedzero", "--set", 'hypernetwork={"chunk_size":0}'], errors.InputError),
        (["train", "fedavg", "--set", "learning_rate=NaN"], errors.InputError),
        (["train", "fedavg", "--set", "local_steps=0"], errors.InputError),
        (["train", "fedavg", "--rounds", "1", "--out", "/proc/x"], errors.InputError),
        (["keys", "new", "k", "--out", "/proc/x"], errors.InputError),
        (["export", "nowhere", "--out", "b", "--sign", "nowhere.key"], errors.KeyFileError),
        (["bundle", "verify", "nowhere", "--trusted", "nowhere.pub"], errors.KeyFileError),
        (["keys", "show", "nowhere.pub"], errors.KeyFileError),
        (["demo", "--data", "nowhere"], errors.DatasetError),
    ],
)
def test_wrong_words_are_answered(tmp_path: Path, words: list[str], kind: type[errors.FedtailorError]) -> None:
    result = fedtailor(*words, cwd=tmp_path)
    assert result.returncode == kind.exit_code, result.stderr
    assert "Traceback" not in result.stderr
    assert not any(path.name != "runs" for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["demo"],
        ["train"],
        ["export"],
        ["bundle"],
        ["bundle", "verify"],
        ["bundle", "inspect"],
        ["keys", "new"],
        ["keys", "show"],
        ["edge", "personalize"],
        ["edge", "predict"],
        ["edge", "run"],
        ["coordinator", "prototypes"],
        ["broker"],
    ],
)
def test_help_has_an_example(words: list[str]) -> None:
    result = fedtailor(*words, "--help")
    assert result.returncode == 0
    assert "fedtailor" in result.stdout
    if len(words) > 1 or words in (["demo"], ["train"], ["export"], ["broker"]):
        assert "Example: fedtailor" in " ".join(result.stdout.split())


def test_the_overview_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'onnxruntime', 'paho'}"
    code = f"import sys, fedtailor; fedtailor.main(['--help'], standalone_mode=False); print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_run_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious.txt").write_text("keep me")
    result = fedtailor("train", "fedavg", "--rounds", "1", "--out", tmp_path / "run", "--quiet")
    assert result.returncode == errors.RunFolderError.exit_code
    assert snapshot(tmp_path) == {"run/precious.txt": b"keep me"}


def test_a_diverging_run_says_round_and_device(tmp_path: Path) -> None:
    settings = ["--set", "learning_rate=1e30", "--set", "clip_norm=1e30"]
    result = fedtailor("train", "fedavg", "--rounds", "3", *settings, "--quiet", "--out", tmp_path / "run")
    assert result.returncode == errors.DivergenceError.exit_code, result.stderr
    assert "round 0" in result.stderr
    assert "learning_rate" in result.stderr
