"""Federated low-rank adaptation on six looks of Fashion-MNIST: accuracy before and after local steps, and on new devices.

    python benchmarks/federated_lora.py --setting feature --steps 10 --seeds 0 1 2 --out runs/lora

``feature``: six participants, one look each, 400 images. ``label``: thirty, five of each look with class mixes of Dirichlet 0.5, 200
images, a fifth of them in each round. A backbone is pretrained for each seed on other images. Rates come from
``--grid``, which trains seed 100 and scores participants' validation samples. Results are appended as JSON lines; what is there
already is not done again. ``--table`` prints what they say.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer.data.dataset import Dataset
from trainer.data.datasets import load_dataset
from trainer.data.federation import Participant, SplitSettings
from trainer.engine.cohort import CohortEngine
from trainer.evaluation import Trained
from trainer.methods.registry import method_settings
from trainer.models.weights import write_weights
from trainer.pretraining import pretrain
from trainer.simulation import Execution, Federation, default_split
from trainer.statistics import bootstrap_interval, paired_differences

METHODS = ("hyperlora", "fedit", "ffa-lora", "flora", "flexlora", "lora-fair", "fedex-lora", "rolora", "hetlora", "local-lora")
RATES = (0.02, 0.05, 0.1)
GRID_SEED = 100
SETTINGS: Mapping[str, tuple[Mapping[str, Any], float]] = {
    "feature": ({}, 1.0),
    "label": ({"partition": "domain-dirichlet", "participants": 30, "training_size": 200, "concentration": 0.5}, 0.2),
}
KINDS = {"known": range(6), "unknown": range(6, 9), "mixture": range(9, 12)}  # new devices of known looks, of unknown ones, of two
FIGURES = ("static", "before", "after", *KINDS)


def split_of(setting: str, dataset: Dataset, seed: int) -> SplitSettings:
    """Return the cut of a setting."""
    return replace(default_split(dataset, seed), validation_share=0.1, minimum_samples=100, **SETTINGS[setting][0])


def backbone(model: str, seed: int, folder: Path) -> Path:
    """Return the pretrained weights of a seed, made if they are not there."""
    path = folder / f"{model}-{seed}.safetensors"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        weights, accuracy = pretrain(model, load_dataset("fashion-mnist-backbone"), 5, seed)
        write_weights(path, weights)
        print(f"{path}: {accuracy:.1%} of held-out images right", flush=True)
    return path


def measured(trained: Trained, federation: Federation, part: str) -> dict[str, float]:
    """Return accuracies, shares: of one model for everybody, of participants before and after their steps, of new devices by kind."""
    data, answers = federation.data, federation.answers
    nobody = trained.method.start_of(trained.server, "nobody")  # type: ignore[attr-defined]  # all methods here adapt
    static = trained.method.predictor_of(trained.method.weights_of(nobody))  # type: ignore[attr-defined]
    rows: dict[str, list[float]] = {name: [] for name in FIGURES}
    for client in data.participants:
        held_out = _held_out(client, part)
        for name, labels in (("before", None), ("after", client.labels)):
            rows[name].append(_right(trained, trained.predictor(client.device, client.samples, labels), *held_out))
        rows["static"].append(_right(trained, static, *held_out))
    for place, device in enumerate(data.new_devices):
        kind = next(name for name, places in KINDS.items() if place in places)
        predictor = trained.predictor(device.device, device.support, None)
        rows[kind].append(_right(trained, predictor, device.query, answers.query_labels[device.device]))
    return {name: float(np.mean(values)) for name, values in rows.items()}


def _held_out(client: Participant, part: str) -> tuple[Any, Any]:
    """Return a participant's validation or test data."""
    return (client.validation_samples, client.validation_labels) if part == "validation" else (client.test_samples, client.test_labels)


def _right(trained: Trained, predictor: Any, samples: Any, labels: Any) -> float:
    """Return the share of samples (N, *shape) told right."""
    return float(np.mean(trained.logits(predictor, samples).argmax(axis=1) == labels))


def run(job: Mapping[str, Any], dataset: Dataset, rounds: int, folder: Path) -> dict[str, Any]:
    """Return a job with its accuracies and seconds."""
    values = {"model": job["model"], "backbone": str(backbone(job["model"], job["seed"], folder)), "batch_size": job["batch_size"]}
    settings = method_settings(job["method"], {**values, "local_steps": job["steps"], "learning_rate": job["rate"], **job["more"]})
    execution = Execution(CohortEngine(), SETTINGS[job["setting"]][1])
    federation = Federation(settings, dataset, seed=job["seed"], split=split_of(job["setting"], dataset, job["seed"]), execution=execution)
    started = time.perf_counter()
    fitted = federation.fit(rounds)
    part = "validation" if job["seed"] == GRID_SEED else "test"
    found = measured(fitted.trained, federation, part)
    return {**job, **found, "seconds": round(time.perf_counter() - started, 1)}


def best_rates(rows: Sequence[Mapping[str, Any]], job: Mapping[str, Any]) -> float:
    """Return the rate with the best validation accuracy after ten steps for a method in a setting; 0.05 where none was tried."""
    same = ("method", "setting", "model", "batch_size")
    tried = [row for row in rows if row["seed"] == GRID_SEED and all(row[name] == job[name] for name in same)]
    return float(max(tried, key=lambda row: row["after"])["rate"]) if tried else 0.05


def jobs_of(arguments: argparse.Namespace, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what to run."""
    jobs = []
    for seed in [GRID_SEED] if arguments.grid else arguments.seeds:
        for method in arguments.methods:
            job = {"method": method, "setting": arguments.setting, "steps": arguments.steps, "seed": seed, "model": arguments.model}
            job |= {"batch_size": arguments.batch_size, "more": json.loads(arguments.more)}
            rates = RATES if arguments.grid else [arguments.rate or best_rates(rows, job)]
            jobs += [{**job, "rate": rate} for rate in rates]
    return jobs


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one Markdown table for each setting, number of steps, model and batch size, at the rate that was run last."""
    shown = [row for row in rows if row["seed"] != GRID_SEED and not row["more"]]
    for group in sorted({(r["setting"], r["steps"], r["model"], r["batch_size"]) for r in shown}):
        own = [r for r in shown if (r["setting"], r["steps"], r["model"], r["batch_size"]) == group]
        print(f"\n{group[0]} skew, {group[1]} steps, {group[2]}, batch {group[3]}\n")
        print("| method | rate | seeds | static | before | after | HyperLoRA's minus this | known | unknown | mixture |")
        print("| --- " * 10 + "|")
        rate = next((r["rate"] for r in reversed(own) if r["method"] == "hyperlora"), None)
        first = {r["seed"]: r["after"] for r in own if r["method"] == "hyperlora" and r["rate"] == rate}
        for method in [name for name in METHODS if any(r["method"] == name for r in own)]:
            last = next(r["rate"] for r in reversed(own) if r["method"] == method)
            mine = [r for r in own if r["method"] == method and r["rate"] == last]
            cells = {name: _interval([r[name] for r in mine]) for name in FIGURES}
            gaps = list(paired_differences(first, {r["seed"]: r["after"] for r in mine}).values())
            difference = _interval(gaps, signed=True) if gaps and method != "hyperlora" else ""
            before = f"| `{method}` | {mine[0]['rate']:g} | {len(mine)} | {cells['static']} | {cells['before']} | {cells['after']} "
            print(before + f"| {difference} | {cells['known']} | {cells['unknown']} | {cells['mixture']} |")


def _interval(values: Sequence[float], *, signed: bool = False) -> str:
    """Return the mean and the interval of shares in per cent."""
    mean, low, high = (100 * each for each in bootstrap_interval(values))
    return f"{mean:+.1f} [{low:.1f}, {high:.1f}]" if signed else f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=list(SETTINGS), default="feature")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--model", default="vit-tiny")
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--rate", type=float, help="Learning rate; that of the grid when left out.")
    parser.add_argument("--grid", action="store_true", help="Try all rates on seed 100.")
    parser.add_argument("--more", default="{}", help="Further settings as JSON.")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/lora"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "results.jsonl"
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.is_file() else []
    if arguments.table:
        table(rows)
        return
    torch.set_num_threads(1)
    dataset = load_dataset("fashion-mnist-domains")
    for job in jobs_of(arguments, rows):
        if any(all(row[name] == value for name, value in job.items()) for row in rows):
            continue
        done = run(job, dataset, arguments.rounds, arguments.out)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done) + "\n")
        figures = " ".join(f"{name} {100 * done[name]:.1f}" for name in FIGURES)
        print(f"{job['setting']} {job['method']:11s} seed {job['seed']} rate {job['rate']:g} {figures} {done['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
