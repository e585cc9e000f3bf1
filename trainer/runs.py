"""Run folders: everything needed to repeat a run, its metrics, its checkpoints. No pickle anywhere.

- ``config.json``: method and settings, data, split, rounds, seed, versions, git state
- ``metrics.jsonl``: one line a round
- ``checkpoints/round-00300.safetensors``: server state after that many rounds
- ``evaluation.json``: last-round accuracies, sizes and seconds
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from protocol.errors import RunFolderError
from protocol.files import write_atomically
from protocol.tensors import decode_tensors, encode_tensors
from trainer.data.federation import SplitSettings
from trainer.evaluation import Evaluation
from trainer.methods.base import State, Task

RECORDED_PACKAGES = ("fedtailor", "torch", "numpy", "onnx", "onnxscript", "onnxruntime", "scikit-learn")


@dataclass(frozen=True)
class RunConfig:
    """What a run is: nothing else decides its result.

    Attributes:
        method: Name of the method.
        settings: Its settings as plain values.
        data: Data source as the user named it.
        split: How the data became devices.
        task: What the method knows of the data.
        rounds: Rounds of training.
        seed: Seed of initialisation and draws.
        environment: Versions of Python and packages, and the git state, for the record.
    """

    method: str
    settings: dict[str, Any]
    data: str
    split: SplitSettings
    task: Task
    rounds: int
    seed: int
    environment: dict[str, str]

    def identity(self) -> str:
        """Return four hex digits that tell runs with different configurations apart."""
        content = dataclasses.asdict(self) | {"environment": None}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:4]


class Run:
    """A run folder."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = path
        self.config = config

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> Run:
        """Make the folder and write ``config.json``.

        Raises:
            RunFolderError: The folder exists and is not empty.
        """
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunFolderError("the run folder is not empty", got=str(path), hint="name another with --out, or remove it")
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        write_atomically(path / "config.json", _json_bytes(dataclasses.asdict(config)))
        return cls(path, config)

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open an existing run folder.

        Raises:
            RunFolderError: It is absent or its configuration cannot be read.
        """
        try:
            values = json.loads((path / "config.json").read_bytes())
            split = SplitSettings(**values.pop("split"))
            task = values.pop("task")
            shape, classes = tuple(task.pop("sample_shape")), tuple(task.pop("classes"))
            config = RunConfig(split=split, task=Task(sample_shape=shape, classes=classes, **task), **values)
            if type(config.rounds) is not int or not isinstance(config.settings, dict):
                raise TypeError("rounds or settings of the wrong type")
            return cls(path, config)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            hint = "pass a folder that `fedtailor train` made"
            raise RunFolderError(f"{path} is not a run folder", got=f"{type(error).__name__}: {error}", hint=hint) from error

    def log(self, metrics: dict[str, float]) -> None:
        """Append one line to ``metrics.jsonl``."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def save_checkpoint(self, state: State, rounds: int) -> None:
        """Write the server state after ``rounds`` rounds."""
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
        write_atomically(self._checkpoint(rounds), encode_tensors(arrays))

    def final_state(self) -> State:
        """Return the server state after the last round.

        Raises:
            RunFolderError: The run has not ended, or the file is damaged.
        """
        path = self._checkpoint(self.config.rounds)
        if not path.is_file():
            raise RunFolderError("the run has no final checkpoint", expected=str(path), hint="train it to its last round")
        arrays = decode_tensors(path.read_bytes(), error=RunFolderError)
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def save_evaluation(self, evaluation: Evaluation, sizes: dict[str, int], train_seconds: float) -> dict[str, Any]:
        """Write ``evaluation.json`` and return what it holds."""
        content = dataclasses.asdict(evaluation) | sizes | {"train_seconds": train_seconds}
        write_atomically(self.path / "evaluation.json", _json_bytes(content))
        return content

    def evaluation(self) -> dict[str, Any]:
        """Return what ``evaluation.json`` holds.

        Raises:
            RunFolderError: The run was not evaluated.
        """
        try:
            content: dict[str, Any] = json.loads((self.path / "evaluation.json").read_bytes())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path} holds no evaluation", got=str(error), hint="train the run to its end") from error
        return content

    def _checkpoint(self, rounds: int) -> Path:
        """Return the checkpoint's path."""
        return self.path / "checkpoints" / f"round-{rounds:05d}.safetensors"


def environment() -> dict[str, str]:
    """Return the versions of Python and of the packages that shape a result, and the git state."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "threads": str(torch.get_num_threads())}
    for package in RECORDED_PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found | {"git": _git_state()}


def _git_state() -> str:
    """Return commit and cleanliness of the source tree, or that there is none."""
    folder = Path(__file__).parent
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "not a git checkout"


def _json_bytes(content: dict[str, Any]) -> bytes:
    """Return readable JSON."""
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()
