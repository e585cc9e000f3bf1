"""Methods for fleets of unlike devices on Fashion-MNIST: 15 clients of about 120 images, three kinds of networks in turn.

    python benchmarks/unlike_devices.py --partition dirichlet --concentration 0.5 --seeds 3 4 5 6 7
    python benchmarks/unlike_devices.py --partition classes --methods standalone pfedes pfedes-own --json rows.jsonl

1,800 training images (180 a class) are cut between the clients; each client is scored on its share of the official 10,000 test
images, cut as its training classes are. 25 rounds, all clients in each. All methods of a seed get the same cut, the same first
weights, the same batches and the same number of steps of the devices' own networks. What is printed are accuracies after the last
round: means over clients, differences to training alone with 95 % bootstrap intervals over seeds, and means of each group.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trainer.data.dataset import Dataset
from trainer.data.datasets import load_dataset
from trainer.data.federation import FederatedData, Participant
from trainer.data.partitions.base import Cut
from trainer.data.partitions.registry import PARTITIONS
from trainer.engine.base import RoundKey
from trainer.engine.loop import LoopEngine
from trainer.evaluation import Trained
from trainer.methods.base import State
from trainer.methods.registry import method_settings
from trainer.simulation import make_clients, task_of

CLIENTS, IMAGES_A_CLASS, LEAST, TEST_IMAGES = 15, 180, 50, 10_000
VARIANTS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "standalone-3x": ("standalone", {"local_epochs": 6}),
    "pfedes-own": ("pfedes", {"federated": False}),
    "pfedes-plain": ("pfedes", {"label_weight": 0.0, "proxy_vote": 0.0}),
    "pfedes-plain-own": ("pfedes", {"label_weight": 0.0, "proxy_vote": 0.0, "federated": False}),
    "pfedes-no-vote": ("pfedes", {"proxy_vote": 0.0}),
    "pfedes-no-labels": ("pfedes", {"label_weight": 0.0}),
    "pfedes-forward": ("pfedes", {"reverse_weight": 0.0}),
    "pfedes-seed": (
        "pfedes",
        {
            "proxy": "proxy-pooled", "alpha": 0.1, "label_weight": 0.0, "proxy_vote": 0.0, "decay": 0.9, "weight_cap": 0.3,
            "update_norm": 5.0, "local_epochs": 3, "proxy_epochs": 3,
        },
    ),
}  # fmt: skip
DEFAULT = ("standalone", "pfedes", "pfedes-own", "pfedes-plain", "pfedes-paper")


def cut_data(dataset: Dataset, partition: str, concentration: float, seed: int) -> FederatedData:
    """Return the clients of one seed."""
    generator = np.random.default_rng([seed, 17])
    ends = len(dataset.labels) - TEST_IMAGES
    chosen = np.concatenate([generator.permutation(np.flatnonzero(dataset.labels[:ends] == each))[:IMAGES_A_CLASS] for each in range(10)])
    train = Dataset("train", dataset.samples[chosen], dataset.labels[chosen], dataset.classes, dataset.minimum, dataset.maximum)
    shares = PARTITIONS[partition](train, Cut(CLIENTS, LEAST, concentration, 2), generator)
    held = np.array([np.bincount(train.labels[share], minlength=10) for share in shares])  # (M, C)
    tests = cut_test(dataset.labels[ends:], held, generator)
    clients = []
    for place, share in enumerate(shares):
        own, test = np.sort(share), ends + tests[place]
        clients.append(
            Participant(f"client-{place:02d}", train.samples[own], train.labels[own], dataset.samples[test], dataset.labels[test])
        )
    return FederatedData(tuple(clients), ())


def cut_test(labels: np.ndarray[Any, Any], held: np.ndarray[Any, Any], generator: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """Return each client's test positions: of each class the share that it holds of the training images."""
    pieces: list[list[np.ndarray[Any, Any]]] = [[] for _ in held]
    for each in range(held.shape[1]):
        places = generator.permutation(np.flatnonzero(labels == each))
        borders = np.round(np.cumsum(held[:, each]) / held[:, each].sum() * len(places)).astype(int)
        for client, piece in enumerate(np.split(places, borders[:-1])):
            pieces[client].append(piece)
    return [np.sort(np.concatenate(each)) for each in pieces]


def run(name: str, data: FederatedData, dataset: Dataset, seed: int, rounds: int) -> dict[str, Any]:
    """Train a method and return its clients' accuracies after the last round."""
    base, values = VARIANTS.get(name, (name, {}))
    method = method_settings(base, values).bind(task_of(dataset))
    clients, engine, private = make_clients(data), LoopEngine(), dict[str, State]()
    server = method.initial_state(seed, {client.device: method.enrol(client.samples, client.labels) for client in clients})
    started = time.perf_counter()
    for number in range(rounds):
        result = engine.run_round(method, server, clients, RoundKey(seed, number), private)
        server, private = method.aggregate(server, result.updates), {**private, **result.private}
    seconds = time.perf_counter() - started
    trained = Trained(method, server, private, seed)
    accuracies = {}
    for client in data.participants:
        predictor = trained.predictor(client.device, client.samples, client.labels)
        accuracies[client.device] = float((trained.logits(predictor, client.test_samples).argmax(axis=1) == client.test_labels).mean())
    upload = sum(tensor[0].numel() for tensor in result.updates.chunks[0].values()) * 4
    return {"method": name, "seed": seed, "accuracies": accuracies, "uplink_bytes": upload, "seconds": seconds}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the mean."""
    draws = np.random.default_rng(0).choice(np.asarray(values), (10_000, len(values)))
    low, high = np.percentile(draws.mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table."""
    alone = {row["seed"]: row["accuracies"] for row in rows if row["method"] == "standalone"}
    lines = [
        "| method | seeds | accuracy | minus standalone | small / residual / MLP | clients better | uplink bytes |",
        "| " + "--- | " * 7,
    ]
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name and row["seed"] in alone]
        mean = 100 * np.mean([np.mean(list(row["accuracies"].values())) for row in own])
        gains = np.array([[row["accuracies"][each] - alone[row["seed"]][each] for each in sorted(row["accuracies"])] for row in own]) * 100
        low, high = interval(list(gains.mean(axis=1)))
        groups = " / ".join(f"{gains[:, group::3].mean():+.2f}" for group in range(3))
        better = f"{(gains > 0).sum()} of {gains.size}"
        lines.append(
            f"| `{name}` | {len(own)} | {mean:.2f} | {gains.mean():+.2f} [{low:+.2f}, {high:+.2f}] | {groups} | {better} | "
            f"{own[0]['uplink_bytes']} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partition", default="dirichlet", choices=("dirichlet", "classes"))
    parser.add_argument("--concentration", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5, 6, 7])
    parser.add_argument("--methods", nargs="+", default=list(DEFAULT))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path, help="append each run as a line of JSON")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    dataset, rows = load_dataset("fashion-mnist"), []
    for seed in chosen.seeds:
        data = cut_data(dataset, chosen.partition, chosen.concentration, seed)
        for name in chosen.methods:
            rows.append(run(name, data, dataset, seed, chosen.rounds))
            sys.stderr.write(f"{name} seed {seed}: {np.mean(list(rows[-1]['accuracies'].values())):.4f} {rows[-1]['seconds']:.0f} s\n")
            if chosen.json is not None:
                with chosen.json.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    sys.stdout.write(report(rows) + "\n")


if __name__ == "__main__":
    main()
