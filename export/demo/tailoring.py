"""The new devices' half of the demo: each personalises itself and predicts, in processes without torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from export.demo.commands import Commands, last_json
from export.demo.plan import DemoPlan
from trainer.data.federation import Answers, NewDevice


@dataclass(frozen=True)
class Tailored:
    """What came of one new device.

    Attributes:
        samples: Unlabelled samples it personalised from.
        accuracy: Share of its query samples that the tailored classifier got right.
        personalize_ms: Milliseconds from an open bundle to a classifier.
    """

    samples: int
    accuracy: float
    personalize_ms: float


def tailor_all(
    plan: DemoPlan, commands: Commands, devices: tuple[NewDevice, ...], answers: Answers, done: Callable[[], None]
) -> dict[str, Tailored]:
    """Personalise and predict on every new device, and score the printed labels against the answers."""
    results = {}
    classes = json.loads((plan.bundle / "manifest.json").read_bytes())["classes"]
    for device in devices:
        folder, trusted = plan.device(device.device), ("--trusted", plan.public_key("release"))
        made = last_json(
            commands.run("edge", "personalize", plan.bundle, folder / "support.npy", *trusted, "--out", folder / "mine", "--json")
        )
        lines = commands.run("edge", "predict", folder / "mine", folder / "query.npy").splitlines()
        labels = np.array([json.loads(line)["label"] for line in lines])
        truth = np.array(classes)[answers.query_labels[device.device]]
        results[device.device] = Tailored(len(device.support), float(np.mean(labels == truth)), float(made["milliseconds"]))
        done()
    return results
