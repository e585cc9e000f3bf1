"""A whole federation for tests: a release with training graphs, data and keys of devices, and the commands as processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from export.bundling import Extras, export_run
from export.bundling import Release as BundleRelease
from protocol.keys import PrivateKey
from tests.brokers import ROOT
from trainer.data.datasets import load_dataset
from trainer.data.device_folders import write_device_folders
from trainer.data.federation import split_dataset
from trainer.data.presets import DIGITS
from trainer.experiments import Experiment
from trainer.runs import Run
from trainer.training import Training

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def make_release(root: Path, method: str, **settings: object) -> Path:
    """Train a round of the digits, and export a bundle with training graphs that names a coordinator."""
    release, coordinator = PrivateKey.generate(), PrivateKey.generate()
    release.public.save(root / "release.pub")
    coordinator.save(root / "coordinator.key")
    coordinator.public.save(root / "coordinator.pub")
    chosen = {**DIGITS.methods.get(method, {}), **settings}
    experiment = Experiment(data="digits", rounds=1, engine="loop", methods={method: chosen})
    training = Training.start(experiment, method, 0, root / "run")
    training.finish()
    offered = BundleRelease("digits", coordinator_key=coordinator.public.hex)
    export_run(training.run, root / "bundle", offered, release, extras=Extras((), 1.0, training=True))
    data, answers = split_dataset(load_dataset("digits"), training.run.config.split)
    write_device_folders(root / "devices", data, answers)
    (root / "registry").mkdir()
    for device in (*(each.device for each in data.participants), *(each.device for each in data.new_devices)):
        key = PrivateKey.generate()
        key.save(root / "keys" / f"{device}.key")
        key.public.save(root / "registry" / f"{device}.pub")
    return root


@dataclass
class FederationOf:
    """A release with a folder of its own for what this federation writes."""

    release: Path
    root: Path
    url: str
    name: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Copy the run: a coordinator writes into it."""
        shutil.copytree(self.release / "run", self.root / "run")
        self.run = Run.open(self.root / "run")

    def start(self, *words: object, quiet: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fedtailor", *map(str, words)]
        pipe = subprocess.DEVNULL if quiet else subprocess.PIPE
        process = subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=pipe, text=True
        )
        self.processes.append(process)
        return process

    def coordinator(self, method: str, *more: object, url: str | None = None) -> subprocess.Popen[str]:
        own = ("--run", self.root / "run", "--key", self.release / "coordinator.key", "--registry", self.release / "registry")
        bundle = ("--bundle", self.release / "bundle", "--trusted", self.release / "release.pub", "--federation", self.name)
        return self.start("coordinator", "run", "--method", method, *own, *bundle, "--broker", url or self.url, "--json", *more)

    def device(self, device: str, *more: object, url: str | None = None) -> subprocess.Popen[str]:
        folder = self.root / device
        data = folder / "data"
        if not data.exists():
            shutil.copytree(self.release / "devices" / device, data)
        own = ("--bundle-store", folder / "store", "--state", folder / "state", "--data", data, "--device", device)
        keys = ("--key", self.release / "keys" / f"{device}.key", "--coordinator", self.release / "coordinator.pub")
        shared = ("--trusted", self.release / "release.pub", "--broker", url or self.url, "--federation", self.name, "--json")
        return self.start("edge", "run", *own, *keys, *shared, *more)

    def status(self) -> dict[str, Any]:
        return result_of(self.start("coordinator", "status", "--run", self.root / "run", "--json"))

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def result_of(process: subprocess.Popen[str], seconds: float = 120) -> dict[str, Any]:
    """Return what a command printed."""
    output, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, output + (errors or "")
    result: dict[str, Any] = json.loads(output)
    return result


def farewell(process: subprocess.Popen[str]) -> dict[str, Any]:
    """End an agent in order and return what it did."""
    process.send_signal(signal.SIGTERM)
    return result_of(process, 30)


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    """Wait until something is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)
