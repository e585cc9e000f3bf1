"""Run folders: everything needed to repeat a run, its metrics, its checkpoints. No pickle anywhere.

- ``config.json``: method and settings, data, split, rounds, seed, versions, git state
- ``metrics.jsonl``: one line a round
- ``engine.json``: which engine ran, and why
- ``checkpoints/round-00300.safetensors``: server state and clients' private states after that many rounds
- ``devices.json``: class counts and embeddings of the devices
- ``evaluation.json``: last-round accuracies, sizes, bytes and seconds
- ``ended.json``: when the run was first evaluated; bundles are of that time
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import platform
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from protocol.errors import RunFolderError
from protocol.files import write_atomically
from protocol.tensors import TensorLimits, decode_tensors, encode_tensors
from trainer.calibration import CALIBRATIONS
from trainer.claims import FolderClaim
from trainer.data.federation import SplitSettings
from trainer.evaluation import Evaluation
from trainer.methods.base import State, Task
from trainer.simulation import Progress

SERVER, PRIVATE = "server/", "private/"
ENDED_FILE = "ended.json"
DATA = "data"  # the entry of a configuration's environment that tells whether the data changed
# Checkpoints are our own files: thousands of clients with a whole network each, numbers of any size.
CHECKPOINT_LIMITS = TensorLimits(header_bytes=1 << 30, tensors=1 << 24, magnitude=None)
RECORDED_PACKAGES = ("fedtailor", "torch", "numpy", "onnx", "onnxscript", "onnxruntime", "scikit-learn")

logger = logging.getLogger(__name__)


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
        fraction: Share of the participants that each round selects.
        engine: Engine as the user named it.
        device: Where tensors lived.
        threads: Threads of torch: sums are split by them, so they are part of a bit-identical result.
        backbone: Frozen backbone in front of the method, or None.
        checkpoint_every: Rounds between two checkpoints.
        correction: Calibrations that label-shift correction may choose from.
        environment: Versions of Python and packages, the git state, and a digest of the data, for the record.
    """

    method: str
    settings: dict[str, Any]
    data: str
    split: SplitSettings
    task: Task
    rounds: int
    seed: int
    environment: dict[str, str]
    fraction: float = 1.0
    engine: str = "auto"
    device: str = "cpu"
    threads: int = 1
    backbone: str | None = None
    checkpoint_every: int = 25
    correction: tuple[str, ...] = CALIBRATIONS

    def identity(self) -> str:
        """Return four hex digits that tell runs with different configurations apart."""
        content = dataclasses.asdict(self) | {"environment": None}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:4]

    def differences(self, other: RunConfig) -> list[str]:
        """Return the names of fields in which two configurations differ; of the environment only the data count."""
        own, theirs = (json.loads(json.dumps(dataclasses.asdict(each))) for each in (self, other))  # tuples become lists
        digests = [each.pop("environment").get(DATA) for each in (own, theirs)]
        found = [name for name, value in own.items() if value != theirs[name]]
        return found if None in digests or digests[0] == digests[1] or "data" in found else [*found, "data"]


class Run:
    """A run folder."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = path
        self.config = config
        self._claim: FolderClaim | None = None

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> Run:
        """Make the folder and write ``config.json``.

        Raises:
            RunFolderError: The folder exists and is not empty, or another process is making it.
        """
        if path.exists() and not _is_empty(path):
            raise _taken(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, config)
        run.claim()
        if not _is_empty(path):  # another process was quicker
            raise _taken(path)
        write_atomically(path / "config.json", _json_bytes(dataclasses.asdict(config)))
        (path / "checkpoints").mkdir(exist_ok=True)
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open an existing run folder.

        Raises:
            RunFolderError: It is absent or its configuration cannot be read.
        """
        try:
            values = json.loads((path / "config.json").read_bytes())
            split = SplitSettings(**values.pop("split"))
            values["correction"] = tuple(values.get("correction", CALIBRATIONS))
            task = values.pop("task")
            shape, classes = tuple(task.pop("sample_shape")), tuple(task.pop("classes"))
            config = RunConfig(split=split, task=Task(sample_shape=shape, classes=classes, **task), **values)
            if type(config.rounds) is not int or not isinstance(config.settings, dict):
                raise TypeError("rounds or settings of the wrong type")
            return cls(path, config)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            hint = "pass a folder that `fedtailor train` made"
            raise RunFolderError(f"{path} is not a run folder", got=f"{type(error).__name__}: {error}", hint=hint) from error

    def claim(self) -> None:
        """Keep other processes from training into the folder until ``release``, or until this process ends.

        Raises:
            RunFolderError: Another process is at it.
        """
        self._claim = FolderClaim(self.path)

    def release(self) -> None:
        """Let other processes in."""
        if self._claim is not None:
            self._claim.release()

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the lines of ``metrics.jsonl``, a last half-written one aside.

        Raises:
            RunFolderError: A line in the middle cannot be read.
        """
        path = self.path / "metrics.jsonl"
        lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
        try:
            rows = [json.loads(line) for line in lines[:-1]]
            if not all(isinstance(row, dict) and type(row["round"]) is int for row in rows):
                raise TypeError("a line that is no round's")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            got = f"{type(error).__name__}: {error}"
            raise RunFolderError(f"{path} is damaged", got=got, hint="restore the file, or train again") from error
        return rows

    def forget_after(self, rounds: int) -> None:
        """Drop metrics and checkpoints of rounds that a resumed run will do again, and what an interrupted write left behind."""
        kept = [line for line in self.metrics() if line["round"] < rounds]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.path / "metrics.jsonl", text.encode())
        again = [self._checkpoint(each) for each in self.checkpoint_rounds() if each > rounds]
        for path in (*again, *self.path.glob(".*.json*.*"), *self.path.glob("checkpoints/.round-*")):
            path.unlink(missing_ok=True)

    def save_engine(self, name: str, reason: str) -> None:
        """Write ``engine.json``."""
        write_atomically(self.path / "engine.json", _json_bytes({"engine": name, "reason": reason}))

    def engine(self) -> tuple[str, str] | None:
        """Return name and reason of the engine that ran, or None if no round was begun."""
        path = self.path / "engine.json"
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_bytes())
            return str(content["engine"]), str(content["reason"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(f"{path} is damaged", got=f"{type(error).__name__}: {error}", hint="train again") from error

    def save_checkpoint(self, progress: Progress) -> None:
        """Write the server state and the private states, whole or not at all."""
        tensors = {f"{SERVER}{name}": tensor for name, tensor in progress.server.items()}
        for device, state in progress.private.items():
            tensors |= {f"{PRIVATE}{device}/{name}": tensor for name, tensor in state.items()}
        arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
        self._checkpoint(0).parent.mkdir(exist_ok=True)
        write_atomically(self._checkpoint(progress.rounds), encode_tensors(arrays))

    def checkpoint_rounds(self) -> list[int]:
        """Return after how many rounds there are checkpoints, ascending."""
        names = [path.stem.removeprefix("round-") for path in (self.path / "checkpoints").glob("round-*.safetensors")]
        return sorted(int(name) for name in names if name.isdecimal())

    def last_progress(self, device: torch.device | None = None) -> Progress | None:
        """Return the states of the last checkpoint that can be read and whose rounds all have their metrics; None without one."""
        logged = {row["round"] for row in self.metrics()}
        for rounds in reversed(self.checkpoint_rounds()):
            if not logged.issuperset(range(rounds)):
                logger.warning("%s: metrics of rounds before %d are missing, they are done again", self.path, rounds)
                continue
            try:
                return self.progress(rounds, device)
            except RunFolderError as error:
                logger.warning("%s, the checkpoint before it is taken", error)
        return None

    def progress(self, rounds: int, device: torch.device | None = None) -> Progress:
        """Return the states after ``rounds`` rounds, on a device.

        Raises:
            RunFolderError: There is no such checkpoint, or it is damaged.
        """
        path = self._checkpoint(rounds)
        if not path.is_file():
            raise RunFolderError("the run has no such checkpoint", expected=str(path))
        try:
            arrays = decode_tensors(path.read_bytes(), CHECKPOINT_LIMITS, RunFolderError)
        except RunFolderError as error:
            got = f"{error.what}, {error.got}"
            raise RunFolderError(f"{path} is damaged", expected=error.expected, got=got, hint="restore it, or train again") from error
        server: State = {}
        private: dict[str, State] = {}
        for name, array in arrays.items():
            if name.startswith(SERVER):
                server[name.removeprefix(SERVER)] = torch.from_numpy(array.copy()).to(device)
                continue
            client, _, own = name.removeprefix(PRIVATE).partition("/")
            private.setdefault(client, {})[own] = torch.from_numpy(array.copy()).to(device)
        return Progress(rounds, server, private)

    def final_state(self) -> State:
        """Return the server state after the last round.

        Raises:
            RunFolderError: The run has not ended, or the file is damaged.
        """
        if not self._checkpoint(self.config.rounds).is_file():
            raise RunFolderError("the run has no final checkpoint", got=str(self.path), hint=f"fedtailor train --resume {self.path}")
        return self.progress(self.config.rounds).server

    def save_evaluation(self, evaluation: Evaluation, costs: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``evaluation.json`` and return what it holds: sizes, bytes and seconds are ``costs``."""
        content = dataclasses.asdict(evaluation.plain) | dataclasses.asdict(evaluation) | dict(costs)
        del content["plain"]  # its fields stand at the top
        if not (self.path / ENDED_FILE).is_file():  # a file of its own: the evaluation is the same whenever it is made
            write_atomically(self.path / ENDED_FILE, _json_bytes({"ended": int(time.time())}))
        write_atomically(self.path / "evaluation.json", _json_bytes(content))
        return content

    def ended(self) -> int:
        """Return when the run was first evaluated, in seconds since 1970: a bundle is of that time, however often it is exported.

        Raises:
            RunFolderError: The run has not ended, or the file is damaged.
        """
        return int(self._read_json(ENDED_FILE)["ended"])

    def save_devices(self, content: Mapping[str, Any]) -> None:
        """Write ``devices.json``: class counts and embedding of every device, for the report."""
        write_atomically(self.path / "devices.json", _json_bytes(dict(content)))

    def devices(self) -> dict[str, Any]:
        """Return what ``devices.json`` holds.

        Raises:
            RunFolderError: The run has not ended, or the file is damaged.
        """
        return self._read_json("devices.json")

    def evaluation(self) -> dict[str, Any]:
        """Return what ``evaluation.json`` holds.

        Raises:
            RunFolderError: The run was not evaluated.
        """
        return self._read_json("evaluation.json")

    def _read_json(self, name: str) -> dict[str, Any]:
        """Return what one of the files that end a run holds."""
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_bytes())
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{self.path} holds no {name}", got=str(error), hint="train the run to its end") from error
        return content

    def _checkpoint(self, rounds: int) -> Path:
        """Return the checkpoint's path."""
        return self.path / "checkpoints" / f"round-{rounds:05d}.safetensors"


def _is_empty(path: Path) -> bool:
    """Tell whether a folder holds nothing but what a process that was stopped while making it may leave."""
    if not path.is_dir():
        return False
    left = [each for each in path.iterdir() if not each.name.startswith(".config.json.")]
    return all(each.name == "checkpoints" and each.is_dir() and not any(each.iterdir()) for each in left)


def _taken(path: Path) -> RunFolderError:
    """Return the error of a folder that holds something."""
    return RunFolderError("the run folder is not empty", got=str(path), hint="name another with --out, or remove it")


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
