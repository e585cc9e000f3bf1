"""The server's half of the demo: keys, two trained runs, a signed bundle, the devices' folders."""

from __future__ import annotations

from typing import Any

from export.demo.commands import Commands, last_json
from export.demo.plan import DemoPlan
from trainer.data.datasets import load_dataset
from trainer.data.device_folders import write_device_folders
from trainer.data.federation import Answers, FederatedData, split_dataset
from trainer.runs import Run


def make_keys(plan: DemoPlan, commands: Commands, names: list[str]) -> None:
    """Make one key pair for each name."""
    for name in names:
        commands.run("keys", "new", name, "--out", plan.key_folder(name), "--json")


def train(plan: DemoPlan, commands: Commands, method: str) -> dict[str, Any]:
    """Train a method with its progress bar on standard error, and return what its evaluation says."""
    rounds = [] if plan.rounds is None else ["--rounds", plan.rounds]
    words = ["train", method, "--data", plan.data, "--seed", plan.seed, *rounds, "--out", plan.run(method), "--json"]
    return last_json(commands.run(*words, quiet=False))


def export_bundle(plan: DemoPlan, commands: Commands) -> dict[str, Any]:
    """Export HyperFedZero's run into a bundle signed with the release key."""
    keys = ["--sign", plan.private_key("release"), "--coordinator-key", plan.public_key("coordinator")]
    return last_json(commands.run("export", plan.run("hyperfedzero"), "--out", plan.bundle, *keys, "--json"))


def hand_out_data(plan: DemoPlan) -> tuple[FederatedData, Answers]:
    """Write each device's folder, from the same cut that training used."""
    config = Run.open(plan.run("hyperfedzero")).config
    data, answers = split_dataset(load_dataset(config.data), config.split)
    write_device_folders(plan.root / "devices", data, answers)
    return data, answers
