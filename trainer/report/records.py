"""What a run folder says, read whole and checked: an error names the file that is missing or damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import RunFolderError
from trainer.evaluation import Accuracies
from trainer.health import EmbeddingHealth
from trainer.report.devices import DeviceRecord, read_devices
from trainer.report.values import mapping, number, share, whole
from trainer.runs import Run, RunConfig

COUNTS = ("parameters", "bytes_up", "bytes_down")
LARGEST = 1e30  # of what is drawn
USES = ("nothing", "samples", "labels")
DAMAGE = (AttributeError, KeyError, OSError, OverflowError, RecursionError, RunFolderError, TypeError, ValueError)


@dataclass(frozen=True, eq=False)
class Record:
    """A run that has ended.

    Attributes:
        path: Its folder.
        config: Its configuration.
        engine: Name and reason of the engine, where it was recorded.
        plain: Accuracies as the method stands.
        shifted: Accuracies with label shift corrected.
        calibration: Which training prior that correction assumes.
        new_device_uses: What the method reads of a new device.
        confusion: Of the new devices' query samples, [true class, predicted class], (C, C) int64.
        costs: ``parameters``, ``bytes_up``, ``bytes_down`` and ``train_seconds``.
        devices: The devices, participants first.
        health: Whether embeddings tell devices apart; None where there are too few.
        rows: Numbers of each round, by name.
    """

    path: Path
    config: RunConfig
    engine: tuple[str, str] | None
    plain: Accuracies
    shifted: Accuracies
    calibration: str
    new_device_uses: str
    confusion: NDArray[np.int64]
    costs: Mapping[str, float]
    devices: tuple[DeviceRecord, ...]
    health: EmbeddingHealth | None
    rows: tuple[Mapping[str, float], ...]


def read_record(run: Run) -> Record:
    """Return what a run folder says.

    Raises:
        RunFolderError: The run has not ended, was made before ``devices.json`` existed, or a file is damaged.
    """
    path = run.path
    with damage_named(path / "config.json"):
        classes = _check_config(run.config)
    rows = _rows(run)
    _require_end(run, len(rows))
    with damage_named(path / "devices.json"):
        table = run.devices()
        devices, health = read_devices(table, classes), _health(table["embedding_health"])
    with damage_named(path / "engine.json"):
        engine = run.engine()
    with damage_named(path / "evaluation.json"):
        content = mapping(run.evaluation())
        return Record(
            path=path,
            config=run.config,
            engine=engine,
            plain=_accuracies(content),
            shifted=_accuracies(mapping(content["shifted"])),
            calibration=str(content["calibration"]),
            new_device_uses=USES[USES.index(content["new_device_uses"])],
            confusion=_confusion(content["confusion"], classes),
            costs={name: whole(content[name]) for name in COUNTS} | {"train_seconds": number(content["train_seconds"], least=0)},
            devices=devices,
            health=health,
            rows=rows,
        )


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn whatever a malformed file causes into an error that names it."""
    try:
        yield
    except DAMAGE as error:
        found = error.got if isinstance(error, RunFolderError) else f"{type(error).__name__}: {error}"
        raise RunFolderError(f"{path} is damaged", got=found, hint="restore the file, or train the run again") from error


def _check_config(config: RunConfig) -> int:
    """Return the number of classes of a configuration whose parts are of the right kind."""
    whole(config.seed)
    texts: list[object] = [config.method, config.data, *config.task.classes]
    if not all(isinstance(each, str) for each in texts):
        raise TypeError("method, data and class names must be texts")
    mapping(config.environment)
    return len(config.task.classes)


def _rows(run: Run) -> tuple[dict[str, float], ...]:
    """Return the numbers of each round's line that can be drawn."""
    with damage_named(run.path / "metrics.jsonl"):
        lines = [mapping(line) for line in run.metrics()]
        for line in lines:
            whole(line["round"])
            number(line["loss"], finite=False)
        numbers = [{name: value for name, value in line.items() if type(value) in (int, float)} for line in lines]
        return tuple({name: float(value) for name, value in row.items() if abs(value) < LARGEST} for row in numbers)


def _require_end(run: Run, done: int) -> None:
    """Refuse a run that has not ended, or that an earlier version made."""
    rounds = run.config.rounds
    if not (run.path / "evaluation.json").exists():
        raise RunFolderError(
            f"{run.path} has not ended: it holds no evaluation.json",
            expected=f"{rounds} rounds and an evaluation",
            got=f"{done} rounds",
            hint=f"fedtailor train --resume {run.path}",
        )
    if not (run.path / "devices.json").exists():
        hint = "an earlier version made this run; train it again, or leave it out"
        raise RunFolderError(f"{run.path} holds no devices.json", expected="a run of this version", hint=hint)
    if done == 0:
        hint = "restore the file, or train the run again"
        raise RunFolderError(f"{run.path / 'metrics.jsonl'} has no lines", expected=f"{rounds} rounds", got="none", hint=hint)


def _accuracies(content: Mapping[str, Any]) -> Accuracies:
    """Return accuracies from plain values."""
    single = {name: share(content[name]) for name in ("gacc", "pacc", "zacc", "worst_tenth", "deviation")}
    by_device = {
        kind: {device: share(value) for device, value in mapping(content[kind]).items()} for kind in ("participants", "new_devices")
    }
    return Accuracies(**single, **by_device)  # type: ignore[arg-type]  # two kinds of fields at once


def _confusion(content: list[list[int]], classes: int) -> NDArray[np.int64]:
    """Return the confusion matrix (C, C); zeros where there were no new devices."""
    if content == []:
        return np.zeros((classes, classes), np.int64)
    matrix = np.array([[whole(value) for value in row] for row in content], np.int64)
    if matrix.shape != (classes, classes):
        raise ValueError(f"the confusion matrix is of shape {matrix.shape}, not {(classes, classes)}")
    return matrix


def _health(content: Mapping[str, Any] | None) -> EmbeddingHealth | None:
    """Return the embeddings' health from plain values."""
    if content is None:
        return None
    names = ("deviation", "effective_dimensions", "class_mix_probe")
    return EmbeddingHealth(**{name: number(content[name], finite=False) for name in names})
