"""A run from beginning to end: folder, rounds, checkpoints, evaluation; and its continuation after an interruption."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protocol.errors import InputError, RunFolderError
from trainer.data.dataset import Dataset
from trainer.engine.auto import AutoEngine, Choice
from trainer.engine.base import Engine, RoundResult
from trainer.engine.cohort import CohortEngine
from trainer.engine.compilation import Compiler
from trainer.engine.loop import LoopEngine
from trainer.experiments import Experiment
from trainer.health import device_table
from trainer.methods.base import MethodSettings, State
from trainer.methods.registry import METHODS, method_settings, settings_as_values
from trainer.runs import DATA, Run, RunConfig, environment
from trainer.simulation import Execution, Federation, FittedRun, Progress, task_of

SMALL_MODEL_WEIGHTS = 20_000
ENGINES = ("auto", "loop", "cohort", "compiled", "cluster")

Observer = Callable[[int, float], None]  # rounds done, loss of the last one


@dataclass(frozen=True, eq=False)
class Training:
    """A run that can be carried on.

    Attributes:
        run: Its folder.
        federation: Data, method and engine.
        progress: Where it stands.
        correction: Calibrations that label-shift correction may choose from.
    """

    run: Run
    federation: Federation
    progress: Progress
    correction: tuple[str, ...]

    @classmethod
    def start(cls, experiment: Experiment, method: str, seed: int, out: Path | None, dataset: Dataset | None = None) -> Training:
        """Return a new run in a new folder.

        Args:
            experiment: Data, rounds, cut, engine.
            method: Name of the method.
            seed: Seed of everything random.
            out: Run folder; ``runs/METHOD-XXXX`` when None.
            dataset: The experiment's data, where they are loaded already.
        """
        dataset = dataset or experiment.dataset()
        settings = experiment.settings_of(method, dataset)
        config = planned_config(experiment, method, seed, dataset)
        torch.set_num_threads(config.threads)
        execution = Execution(make_engine(experiment.engine, config.rounds, None), experiment.fraction, experiment.torch_device())
        federation = Federation(settings, dataset, seed=seed, split=config.split, execution=execution)
        run = Run.create(out or Path("runs") / f"{method}-{config.identity()}", config)
        return cls(run, federation, federation.begin(), experiment.correction)

    @classmethod
    def resume(cls, path: Path) -> Training:
        """Return an interrupted run at its last checkpoint; rounds after it are done again, to the same result.

        Raises:
            RunFolderError: It is no run folder, its data changed, it has ended, or another process is at it.
        """
        run = Run.open(path)
        run.claim()
        config = run.config
        if (path / "evaluation.json").is_file():
            raise RunFolderError(f"{path} has ended", got=f"{config.rounds} rounds", hint="export it, or train another")
        experiment = Experiment(data=config.data, backbone=config.backbone, device=config.device)
        dataset = experiment.dataset()
        if task_of(dataset) != config.task:
            raise RunFolderError(f"the data of {path} changed", expected=config.task, got=task_of(dataset), hint="restore them")
        digest = data_digest(dataset, experiment)
        if config.environment.get(DATA, digest) != digest:
            raise RunFolderError(f"the data of {path} changed", expected=config.environment[DATA], got=digest, hint="restore them")
        torch.set_num_threads(config.threads)
        engine = make_engine(config.engine, config.rounds, run.engine())
        settings, execution = method_settings(config.method, config.settings), Execution(engine, config.fraction, experiment.torch_device())
        federation = Federation(settings, dataset, seed=config.seed, split=config.split, execution=execution)
        progress = run.last_progress(federation.device) or federation.begin()
        run.forget_after(progress.rounds)
        return cls(run, federation, progress, config.correction)

    def finish(self, observe: Observer | None = None) -> dict[str, Any]:
        """Train to the last round, evaluate, and return what ``evaluation.json`` then holds."""
        log = _RoundLog(self.run, self.federation, self.progress.server, observe)
        try:
            fitted = self.federation.fit(self.run.config.rounds, log.after_round, self.progress)
            if fitted.progress.rounds not in self.run.checkpoint_rounds():
                self.run.save_checkpoint(fitted.progress)
            self.run.save_devices(device_table(fitted.trained, self.federation.data, self.federation.answers))
            return self.run.save_evaluation(fitted.evaluate(self.correction), self._costs(fitted))
        finally:
            self.run.release()

    def _costs(self, fitted: FittedRun) -> dict[str, Any]:
        """Return sizes, bytes, steps and seconds of the whole run, earlier parts of a resumed one included."""
        rows = self.run.metrics()
        totals = {name: sum(row[name] for row in rows) for name in ("bytes_up", "bytes_down", "local_steps")}
        return fitted.method.sizes(fitted.state) | totals | {"train_seconds": sum(row["seconds"] for row in rows)}


class _RoundLog:
    """Writes metrics and checkpoints as rounds end."""

    def __init__(self, run: Run, federation: Federation, server: State, observe: Observer | None) -> None:
        self._run = run
        self._federation = federation
        self._observe = observe
        self._before = time.perf_counter()
        self._server = server

    def after_round(self, result: RoundResult, progress: Progress) -> None:
        """Keep what a round gave."""
        now = time.perf_counter()
        method, devices = self._federation.method, result.updates.devices
        down = sum(bytes_of(method.downlink(self._server, device)) for device in devices)
        row = {
            "round": progress.rounds - 1,
            "loss": result.loss,
            "seconds": now - self._before,
            "local_steps": result.local_steps,
            "bytes_up": sum(bytes_of(chunk) for chunk in result.updates.chunks),
            "bytes_down": down,
        }
        engine = self._federation.engine
        if self._run.engine() is None:
            choice = engine.choice if isinstance(engine, AutoEngine) else None
            asked = Choice(self._run.config.engine, "as asked for")
            self._run.save_engine(*((choice or asked).name, (choice or asked).reason))
        self._run.log(row)
        if progress.rounds % self._run.config.checkpoint_every == 0:
            self._run.save_checkpoint(progress)
        if self._observe is not None:
            self._observe(progress.rounds, result.loss)
        self._server = progress.server
        self._before = time.perf_counter()


def bytes_of(state: dict[str, torch.Tensor]) -> int:
    """Return the raw bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def planned_config(experiment: Experiment, method: str, seed: int, dataset: Dataset) -> RunConfig:
    """Return what a run of an experiment is, before anything of it is done."""
    settings = experiment.settings_of(method, dataset)
    threads = experiment.threads or suitable_threads(settings, dataset)
    return RunConfig(
        method=method,
        settings=settings_as_values(settings),
        data=experiment.data,
        split=experiment.split_of(dataset, seed),
        task=task_of(dataset),
        rounds=experiment.rounds_of(dataset),
        seed=seed,
        environment=environment() | {"threads": str(threads), DATA: data_digest(dataset, experiment)},
        fraction=experiment.fraction,
        engine=experiment.engine,
        device=experiment.torch_device().type,
        threads=threads,
        backbone=experiment.backbone,
        checkpoint_every=experiment.checkpoint_every,
        correction=experiment.correction,
    )


def data_digest(dataset: Dataset, experiment: Experiment) -> str:
    """Return 16 hex digits of the data; of the labels alone behind a backbone, whose features differ by rounding between machines."""
    digest = hashlib.sha256(np.ascontiguousarray(dataset.labels).data)
    if experiment.backbone is None:
        digest.update(np.ascontiguousarray(dataset.samples).data)
    return digest.hexdigest()[:16]


def make_engine(name: str, rounds: int, chosen: tuple[str, str] | None) -> Engine:
    """Return the engine of a name.

    Args:
        name: One of ``ENGINES``.
        rounds: Rounds to come.
        chosen: What ``auto`` chose when the run began, if it did.

    Raises:
        InputError: There is no such engine.
    """
    if name == "auto":
        return AutoEngine(rounds, None if chosen is None else Choice(*chosen))
    if name == "loop":
        return LoopEngine()
    if name in ("cohort", "compiled"):
        compiler = Compiler() if name == "compiled" else None
        if compiler is not None:
            compiler.warn()
        return CohortEngine(compiler=compiler)
    if name == "cluster":
        from trainer.engine.cluster import ClusterEngine  # Ray is an extra

        cluster: Engine = ClusterEngine()
        return cluster
    raise InputError("engine is unknown", expected=" or ".join(ENGINES), got=name)


def suitable_threads(settings: MethodSettings, dataset: Dataset) -> int:
    """Return 1 for small models, whose operations are too short to share, and the number of usable cores for others."""
    method = settings.bind(task_of(dataset))
    weights = method.sizes(method.initial_state(0))["classifier_parameters"]
    return 1 if weights < SMALL_MODEL_WEIGHTS else len(os.sched_getaffinity(0))


def method_names() -> tuple[str, ...]:
    """Return the methods that can be trained."""
    return tuple(METHODS)
