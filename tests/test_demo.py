"""The demo, end to end: real data, processes of their own, both brokers; and what its JSON promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker, running

ROOT = Path(__file__).resolve().parents[1]
KEYS = {"fedavg_zacc", "tailored_zacc", "train_seconds", "fedavg_train_seconds", "parameters", "classifier_parameters", "devices"}
DEVICE_KEYS = {"id", "samples", "fedavg_accuracy", "tailored_accuracy", "personalize_ms", "bytes_up", "bytes_down"}


def demo(*words: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "fedtailor", "demo", "--json", *map(str, words)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert result.returncode == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def check(report: dict[str, Any], devices: int) -> None:
    assert report.keys() >= KEYS
    assert len(report["devices"]) == devices
    for device in report["devices"]:
        assert device.keys() >= DEVICE_KEYS
        assert 0 <= device["tailored_accuracy"] <= 1
        assert device["bytes_up"] > 0
        assert device["bytes_down"] > 0
    means = [sum(device[name] for device in report["devices"]) / devices for name in ("fedavg_accuracy", "tailored_accuracy")]
    assert [report["fedavg_zacc"], report["tailored_zacc"]] == pytest.approx(means)


@pytest.mark.broker
def test_a_short_demo_on_a_broker_of_ones_own(tmp_path: Path) -> None:
    with running(Broker("mosquitto", tmp_path)) as broker:
        report = demo("--rounds", 3, "--broker", broker.url, "--out", tmp_path / "demo", "--seed", 3)
    check(report, devices=5)
    assert report["folder"] == str(tmp_path / "demo")
    config = json.loads((tmp_path / "demo" / "runs" / "hyperfedzero" / "config.json").read_bytes())
    assert config["seed"] == 3
    assert config["rounds"] == 3


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_a_short_form_of_the_reference_setting(tmp_path: Path) -> None:
    """Fewer rounds than the reference, the same everything else: tailoring already pays, and the sizes are what is promised."""
    report = demo("--data", "fashion-mnist", "--rounds", 100, "--out", tmp_path / "demo")
    check(report, devices=10)
    assert report["parameters"] <= 1.5 * report["classifier_parameters"]
    assert report["tailored_zacc"] > report["fedavg_zacc"]


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.slow
def test_the_digits_demo_gains_over_seeds(tmp_path: Path) -> None:
    """Two of the five seeds that are reported in the results."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    reports = [demo("--seed", seed, "--out", tmp_path / str(seed)) for seed in (0, 1)]
    assert sum(report["tailored_zacc"] - report["fedavg_zacc"] for report in reports) > 0


def descendants(pid: int) -> set[int]:
    """Return the children of a process, and theirs."""
    found = {int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()}
    return found.union(*(descendants(child) for child in found))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "fedtailor", "demo", "--rounds", "400", "--out", str(tmp_path / "demo")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        children: set[int] = set()
        while not children and time.monotonic() < deadline:
            time.sleep(0.2)
            children = descendants(process.pid)
        assert children
        process.send_signal(number)
        assert process.wait(20) != 0
    assert not any(Path(f"/proc/{child}").exists() for child in children)
