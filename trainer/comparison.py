"""Several methods on the same data, cuts and budgets, over paired seeds.

``NAME+em`` is a method with its label shift corrected on each device; it shares the training of ``NAME``. Finished runs
found in the folder are not done again, so an interrupted comparison carries on where it stopped.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import InputError, RunFolderError
from trainer.children import Children
from trainer.data.dataset import Dataset
from trainer.experiments import Experiment
from trainer.runs import DATA, Run
from trainer.statistics import Interval, bootstrap_interval, paired_differences
from trainer.training import planned_config

CORRECTED = "+em"
METRICS = ("gacc", "pacc", "zacc")


@dataclass(frozen=True)
class Result:
    """One method on one seed.

    Attributes:
        method: Name as it was asked for.
        seed: Seed.
        accuracies: ``gacc``, ``pacc`` and ``zacc``, shares.
        megabytes: Of all rounds, up and down.
        seconds: Of training.
        new_device_uses: ``nothing``, ``samples`` or ``labels``.
    """

    method: str
    seed: int
    accuracies: Mapping[str, float]
    megabytes: float
    seconds: float
    new_device_uses: str

    def as_values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        spent = {"bytes": round(self.megabytes * 1e6), "seconds": self.seconds, "new_device_uses": self.new_device_uses}
        return {"method": self.method, "seed": self.seed, **self.accuracies, **spent}


@dataclass(frozen=True)
class Job:
    """One training: its name, seed and folder."""

    name: str
    seed: int
    folder: Path


def plan_jobs(names: Sequence[str], seeds: Sequence[int], folder: Path) -> list[Job]:
    """Return the trainings that the names need, each once, seed by seed."""
    trained = list(dict.fromkeys(name.removesuffix(CORRECTED) for name in names))
    return [Job(name, seed, folder / f"{name}-seed{seed}") for seed in seeds for name in trained]


def pending(jobs: Sequence[Job], experiment: Experiment) -> list[Job]:
    """Return the jobs that are not done yet, interrupted ones among them.

    Raises:
        RunFolderError: A folder holds a run with other settings.
    """
    begun = [job for job in jobs if (job.folder / "config.json").is_file()]
    dataset = experiment.dataset() if begun else None
    for job in begun:
        _check_same(job, experiment, dataset)
    return [job for job in jobs if not (job.folder / "evaluation.json").is_file()]


def _check_same(job: Job, experiment: Experiment, dataset: Dataset | None) -> None:
    """Refuse a folder whose run is not the one that the experiment asks for; what does not shape its numbers may differ."""
    method, own = experiment.resolve(job.name)
    config = Run.open(job.folder).config
    planned = planned_config(own, method, job.seed, dataset or own.dataset())
    planned = dataclasses.replace(planned, checkpoint_every=config.checkpoint_every, threads=own.threads or config.threads)
    if differences := config.differences(planned):
        got = ", ".join(f"another {name}" for name in differences)
        raise RunFolderError(
            f"{job.folder} holds another run", expected="the same settings", got=got, hint="name another folder with --out"
        )


def run_jobs(jobs: Sequence[Job], arguments: Sequence[str], workers: int, observe: Callable[[int], None]) -> None:
    """Train every job in a process of its own, some at a time.

    Args:
        jobs: What to train.
        arguments: Options of ``fedtailor train`` that describe the experiment.
        workers: Processes at a time.
        observe: Called with the number of jobs done.

    Raises:
        InputError: A training failed; its own sentence is repeated.
    """
    with ThreadPoolExecutor(workers) as pool, Children() as children:
        futures = [pool.submit(_train, job, arguments, children) for job in jobs]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                future.result()
                observe(done)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()  # first: the pool waits for what runs
            raise


def _train(job: Job, arguments: Sequence[str], children: Children) -> None:
    """Train one job as its own process; one that was interrupted carries on."""
    fresh = not (job.folder / "config.json").is_file()
    asked = [job.name, *arguments, "--seed", str(job.seed), "--out", str(job.folder)] if fresh else ["--resume", str(job.folder)]
    done = children.run([sys.executable, "-m", "fedtailor", "train", *asked, "--quiet", "--json"])
    if done.returncode:
        raise InputError(f"training {job.name} with seed {job.seed} failed", got=_sentence(done), hint=f"its folder is {job.folder}")


def _sentence(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a failed training said: its error as JSON, or the last line of a program that broke down or was refused."""
    try:
        return str(json.loads(done.stdout)["message"])
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return lines[-1]


def read_results(names: Sequence[str], seeds: Sequence[int], folder: Path) -> list[Result]:
    """Return the results of finished runs, seed by seed."""
    return [_result(name, seed, folder) for seed in seeds for name in names]


def _result(name: str, seed: int, folder: Path) -> Result:
    """Return one result."""
    content = Run.open(folder / f"{name.removesuffix(CORRECTED)}-seed{seed}").evaluation()
    row = content["shifted"] if name.endswith(CORRECTED) else content
    uses = content["new_device_uses"]
    if name.endswith(CORRECTED) and uses == "nothing":
        uses = "samples"
    sent = (content["bytes_up"] + content["bytes_down"]) / 1e6
    return Result(name, seed, {metric: row[metric] for metric in METRICS}, sent, content["train_seconds"], uses)


@dataclass(frozen=True)
class Summary:
    """What the seeds say together about one method.

    Attributes:
        method: Its name.
        new_device_uses: ``nothing``, ``samples`` or ``labels``.
        means: Mean and 95 % interval of each accuracy.
        differences: Mean and 95 % interval of the first method's accuracy minus this one's, seed by seed.
        megabytes: Mean.
        seconds: Mean.
    """

    method: str
    new_device_uses: str
    means: Mapping[str, Interval]
    differences: Mapping[str, Interval]
    megabytes: float
    seconds: float

    def as_values(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        intervals = {
            kind: {metric: each._asdict() for metric, each in values.items()}
            for kind, values in (("mean", self.means), ("first_minus_this", self.differences))
        }
        return {"new_device_uses": self.new_device_uses, **intervals, "bytes": round(self.megabytes * 1e6), "seconds": self.seconds}


def summarise(results: Sequence[Result]) -> list[Summary]:
    """Return one summary a method, in the order of first appearance."""
    names = list(dict.fromkeys(result.method for result in results))
    own = {name: [result for result in results if result.method == name] for name in names}
    by_seed = {name: {metric: {r.seed: r.accuracies[metric] for r in rows} for metric in METRICS} for name, rows in own.items()}
    first = by_seed[names[0]]
    return [
        Summary(
            name,
            rows[0].new_device_uses,
            {metric: bootstrap_interval(list(by_seed[name][metric].values())) for metric in METRICS},
            {metric: bootstrap_interval(list(paired_differences(first[metric], by_seed[name][metric]).values())) for metric in METRICS},
            sum(row.megabytes for row in rows) / len(rows),
            sum(row.seconds for row in rows) / len(rows),
        )
        for name, rows in own.items()
    ]


def mixed_environments(runs: Sequence[Run]) -> list[str]:
    """Return one sentence for each part of the environment (a package, the git state) in which the runs differ."""
    environments = [run.config.environment for run in runs]
    names = sorted({name for environment in environments for name in environment} - {DATA})
    found = {name: sorted({environment.get(name, "unknown") for environment in environments}) for name in names}
    return [f"the runs differ in {name}: {' and '.join(values)}" for name, values in found.items() if len(values) > 1]


def as_json(results: Sequence[Result], summaries: Sequence[Summary], folder: Path, warnings: Sequence[str] = ()) -> str:
    """Return the comparison as one JSON object."""
    content = {
        "folder": str(folder),
        "warnings": list(warnings),
        "runs": [result.as_values() for result in results],
        "summary": {summary.method: summary.as_values() for summary in summaries},
    }
    return json.dumps(content)
