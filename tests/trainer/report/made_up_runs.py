"""Run folders as training leaves them, with made-up numbers: fast, and as strange as a test wants them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.federation import SplitSettings
from trainer.evaluation import Accuracies, Evaluation
from trainer.health import EmbeddingHealth, embedding_health
from trainer.methods.base import Task
from trainer.runs import Run, RunConfig


@dataclass(frozen=True)
class MadeUp:
    """What a made-up run is like."""

    method: str = "fedavg"
    seed: int = 0
    classes: Sequence[str] = ("cat", "dog", "owl")
    participants: int = 4
    new_devices: int = 5
    rounds: int = 6
    uses: str = "nothing"
    embedding: int | None = None
    spread: float = 1.0
    data: str = "made-up"
    settings: dict[str, Any] = field(default_factory=lambda: {"learning_rate": 0.1})
    row: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Run:
        run = Run.create(folder, self.config())
        generator = np.random.default_rng(self.seed + 1000 * len(self.method))
        for number in range(self.rounds):
            loss = 2 / (number + 1) + 0.1 * float(generator.random())
            run.log({"round": number, "loss": loss, "seconds": 0.5, "local_steps": 3, "bytes_up": 100, "bytes_down": 100, **self.row})
        run.save_engine("cohort", "it was named")
        run.save_devices(self.devices(generator))
        costs = {"parameters": 1234, "bytes_up": 2_500_000, "bytes_down": 1_500_000, "train_seconds": 3.25, "local_steps": 18}
        run.save_evaluation(self.evaluation(generator), costs)
        return run

    def config(self) -> RunConfig:
        return RunConfig(
            method=self.method,
            settings=self.settings,
            data=self.data,
            split=SplitSettings(self.participants, self.new_devices, 0.3, 10, None, self.seed),
            task=Task((8, 8), "uint8", 0.0, 16.0, tuple(self.classes)),
            rounds=self.rounds,
            seed=self.seed,
            environment={"python": "3.11", "git": "0123abc-dirty"},
        )

    def names(self) -> list[tuple[str, bool]]:
        taking_part = [(f"participant-{place:03d}", True) for place in range(self.participants)]
        return taking_part + [(f"new-{place:03d}", False) for place in range(self.new_devices)]

    def devices(self, generator: np.random.Generator) -> dict[str, Any]:
        mixes = generator.dirichlet([0.3] * len(self.classes), len(self.names()))
        counts = np.floor(mixes * 200).astype(int)
        embeddings = None
        if self.embedding is not None:
            embeddings = 1 + self.spread * generator.normal(size=(len(counts), self.embedding))
        table = {
            name: {
                "participant": participates,
                "class_counts": counts[place].tolist(),
                "embedding": None if embeddings is None else embeddings[place].tolist(),
            }
            for place, (name, participates) in enumerate(self.names())
        }
        health = None
        if embeddings is not None:
            health = vars(embedding_health(embeddings, mixes)) if self.spread else vars(EmbeddingHealth(0.0, 1.0, -0.1))
        return {"devices": table, "embedding_health": health}

    def evaluation(self, generator: np.random.Generator) -> Evaluation:
        plain, shifted = self.accuracies(generator), self.accuracies(generator)
        confusion = generator.integers(0, 9, (len(self.classes), len(self.classes))) if self.new_devices else np.zeros((0, 0), int)
        values: dict[str, float | list[float]] = {"scale": 1.0, "bias": [0.0] * len(self.classes)}
        judged = {"pooled": {"judged": 0.5, "zacc": shifted.zacc}}
        return Evaluation(plain, shifted, "pooled", values, self.uses, judged, None, None, confusion.tolist())

    def accuracies(self, generator: np.random.Generator) -> Accuracies:
        own = {name: float(generator.uniform(0.5, 1)) for name, participates in self.names() if participates}
        unseen = {name: float(generator.uniform(0.2, 1)) for name, participates in self.names() if not participates}
        values = sorted(unseen.values()) or [float("nan")]
        means = float(np.mean(list(own.values()))), float(np.mean(values)), float(values[0]), float(np.std(values))
        return Accuracies(float(generator.uniform(0.5, 1)), *means, own, unseen)


def change(path: Path, **values: Any) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
