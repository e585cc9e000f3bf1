"""One local step on the device's runtime against eager torch: the same step, the same threads, interleaved.

    python benchmarks/training_step.py --threads 2

Prints the median seconds of each and their ratio; ``--json`` for machines. Torch runs what a person would write for torch:
autograd and ``torch.optim``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from edge_runtime.sessions import open_session
from export.step_tracing import StepExample
from export.training_step import export_step
from trainer.lora import LoraPattern, factors_of, with_lora
from trainer.models.registry import build_model
from trainer.optimisers import Sgd, initial_state, training_step

RATE, MOMENTUM = 0.01, 0.9
PAUSE = 0.3  # threads of the other side go on spinning for a while after their work


class Work(NamedTuple):
    """A network, which weights are trained, and a batch."""

    network: nn.Module
    trained: list[str]
    batch: dict[str, Tensor]


def classification(network: nn.Module, shape: tuple[int, ...], rows: int, trained: list[str] | None = None) -> Work:
    """Return work that learns ten classes."""
    batch = {"samples": torch.randn(rows, *shape), "labels": torch.randint(0, 10, (rows,))}
    return Work(network, trained or [name for name, _ in network.named_parameters()], batch)


def transformer() -> Work:
    """Return a ViT, 224 x 224, 192 features, 6 blocks, with LoRA of rank 8 on qkv."""
    plain = build_model("vit", (3, 224, 224), 10, patch=16, dimension=192, depth=6, heads=3)
    network = with_lora(plain, [LoraPattern(r"blocks\.\d+\.attn\.qkv", rank=8)], seed=0)
    return classification(network, (3, 224, 224), 8, list(factors_of(network)))


def decoder() -> Work:
    """Return a decoder of transposed convolutions to 28 x 28 images."""
    layers = [nn.Linear(64, 32 * 49), nn.Unflatten(1, (32, 7, 7)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU()]
    network = nn.Sequential(*layers, nn.ConvTranspose2d(16, 1, 4, 2, 1))
    batch = {"samples": torch.randn(32, 64), "images": torch.rand(32, 1, 28, 28)}
    return Work(network, [name for name, _ in network.named_parameters()], batch)


WORKS: dict[str, Callable[[], Work]] = {
    "ViT 224 with LoRA, batch 8": transformer,
    "LeNet-S 28, batch 32": lambda: classification(build_model("lenet-s", (1, 28, 28), 10), (1, 28, 28), 32),
    "LeNet 28, batch 32": lambda: classification(build_model("lenet", (1, 28, 28), 10), (1, 28, 28), 32),
    "CNN 28, batch 32": lambda: classification(build_model("cnn", (1, 28, 28), 10), (1, 28, 28), 32),
    "decoder 28, batch 32": decoder,
    "MLP 784-64-10, batch 64": lambda: classification(build_model("mlp-64", (1, 28, 28), 10), (1, 28, 28), 64),
}


def loss_of(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss that the batch is for."""
    return functional.mse_loss(outputs, batch["images"]) if "images" in batch else functional.cross_entropy(outputs, batch["labels"])


def device_side(work: Work, threads: int) -> Callable[[], object]:
    """Return one step of the exported graph."""
    weights = {name: each.detach() for name, each in work.network.named_parameters()}
    trained = {name: weights.pop(name) for name in work.trained}
    rule = Sgd(momentum=MOMENTUM)
    step = training_step(lambda own, batch: loss_of(functional_call(work.network, {**weights, **own}, (batch["samples"],)), batch), rule)
    example = StepExample(initial_state(rule, trained), work.batch, {"learning_rate": torch.tensor(RATE)})
    session = open_session(export_step(step, example), "1.19", threads=threads, arena=True)  # as a learner opens it
    feeds = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in example.inputs().items()}
    names = [name for name in feeds if name.startswith("state.")]

    def run() -> None:
        feeds.update(zip(names, session.run(feeds), strict=False))

    return run


def torch_side(work: Work) -> Callable[[], object]:
    """Return one step of autograd and torch.optim."""
    for name, parameter in work.network.named_parameters():
        parameter.requires_grad_(name in work.trained)
    rule = torch.optim.SGD([each for each in work.network.parameters() if each.requires_grad], RATE, momentum=MOMENTUM)

    def run() -> None:
        rule.zero_grad()
        loss_of(work.network(work.batch["samples"]), work.batch).backward()
        rule.step()

    return run


def measure(name: str, threads: int, repeats: int) -> dict[str, object]:
    """Return medians of both sides, run in turn."""
    torch.manual_seed(0)
    work = WORKS[name]()
    ours, theirs = device_side(work, threads), torch_side(work)
    seconds: dict[str, list[float]] = {"device": [], "torch": []}
    for repeat in range(repeats + 2):
        for side, run in (("device", ours), ("torch", theirs)):
            time.sleep(PAUSE)
            began = time.perf_counter()
            run()
            if repeat >= 2:  # the first two warm up
                seconds[side].append(time.perf_counter() - began)
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    return {"work": name, **medians, "ratio": medians["device"] / medians["torch"]}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--only", default="", help="works whose name holds this")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [measure(name, arguments.threads, arguments.repeats) for name in WORKS if arguments.only in name]
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'one step':<30}{'device ms':>11}{'torch ms':>11}{'ratio':>8}")
    for row in rows:
        device, theirs, ratio = (float(str(row[name])) for name in ("device", "torch", "ratio"))
        print(f"{row['work']:<30}{1e3 * device:>11.2f}{1e3 * theirs:>11.2f}{ratio:>8.2f}")


if __name__ == "__main__":
    main()
