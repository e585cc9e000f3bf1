"""Two hundred steps on the device's runtime against torch's own training loop: weights within 1e-3, losses within 1e-4."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from edge_runtime.sessions import open_session
from export.step_tracing import NEXT_STATE, STATE, StepExample
from export.training_step import export_step
from trainer.lora import LoraPattern, factors_of, with_lora
from trainer.methods.base import Batch, State
from trainer.models.registry import build_model
from trainer.optimisers import WEIGHT, Adam, Optimiser, Sgd, initial_state, training_step

ROWS = 16
Loss = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True, eq=False)
class Work:
    """A network, which of its weights are trained, how, and on what."""

    network: nn.Module
    trained: State
    shape: tuple[int, ...]
    rule: Optimiser
    reference: Callable[[Iterable[Tensor]], torch.optim.Optimizer]
    rate: float
    loss: Loss
    clip_norm: float = 0.0


def cross_entropy(outputs: Tensor, batch: Batch) -> Tensor:
    return functional.cross_entropy(outputs, batch["labels"])


def reconstruction(outputs: Tensor, batch: Batch) -> Tensor:
    return functional.mse_loss(outputs, batch["images"])


def all_weights(network: nn.Module) -> State:
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


def multilayer_perceptron() -> Work:
    network = build_model("mlp-32", (1, 8, 8), 4)
    return Work(network, all_weights(network), (1, 8, 8), Adam(), lambda each: torch.optim.Adam(each, 1e-3), 1e-3, cross_entropy)


def lenet() -> Work:
    network = build_model("lenet-s", (1, 16, 16), 4)
    rule = Sgd(momentum=0.9)
    reference = lambda each: torch.optim.SGD(each, 0.01, momentum=0.9)  # noqa: E731
    return Work(network, all_weights(network), (1, 16, 16), rule, reference, 0.01, cross_entropy, clip_norm=1.0)


def transformer_with_lora() -> Work:
    plain = build_model("vit", (1, 16, 16), 4, dimension=16, depth=2, heads=2)
    network = with_lora(plain, [LoraPattern(r"blocks\.\d+\.attn\.qkv", rank=4)], seed=0)
    trained = factors_of(network) | {name: each.detach() for name, each in network.named_parameters() if name.startswith("head.")}
    return Work(network, trained, (1, 16, 16), Adam(), lambda each: torch.optim.Adam(each, 1e-3), 1e-3, cross_entropy)


def decoder() -> Work:
    layers = (
        nn.Linear(64, 32),
        nn.Unflatten(1, (8, 2, 2)),
        nn.ConvTranspose2d(8, 4, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 1, 4, 2, 1),
    )
    network = nn.Sequential(nn.Flatten(), *layers)
    return Work(network, all_weights(network), (1, 8, 8), Adam(), lambda each: torch.optim.Adam(each, 1e-3), 1e-3, reconstruction)


WORKS = {"mlp with Adam": multilayer_perceptron, "LeNet with momentum": lenet, "ViT with LoRA": transformer_with_lora, "decoder": decoder}


def batches(shape: tuple[int, ...], steps: int) -> list[dict[str, Tensor]]:
    """Return batches of images with a pattern for each of four classes."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(4, *shape, generator=generator)
    found = []
    for _ in range(steps):
        labels = torch.randint(0, 4, (ROWS,), generator=generator)
        samples = patterns[labels] + torch.randn(ROWS, *shape, generator=generator)
        images = torch.nn.functional.interpolate(samples, (8, 8)).tanh()
        found.append({"samples": samples, "labels": labels, "images": images})
    return found


def torch_training(work: Work, data: list[dict[str, Tensor]]) -> tuple[list[float], State]:
    """Return the losses and last weights of torch's own loop."""
    trained = {name: parameter for name, parameter in work.network.named_parameters() if name in work.trained}
    rule = work.reference(trained.values())
    losses = []
    for batch in data:
        rule.zero_grad()
        value = work.loss(work.network(batch["samples"]), batch)
        value.backward()
        if work.clip_norm:
            nn.utils.clip_grad_norm_(trained.values(), work.clip_norm)
        rule.step()
        losses.append(value.item())
    return losses, {name: parameter.detach() for name, parameter in trained.items()}


def device_training(work: Work, data: list[dict[str, Tensor]]) -> tuple[list[float], State]:
    """Return the losses and last weights of the exported step, run as a device runs it."""
    names = {name: each.detach() for name, each in work.network.named_parameters() if name not in work.trained}
    step = training_step(
        lambda weights, batch: work.loss(functional_call(work.network, {**names, **weights}, (batch["samples"],)), batch),
        work.rule,
        work.clip_norm,
    )
    state = initial_state(work.rule, work.trained)
    used = {"samples", "labels"} if work.loss is cross_entropy else {"samples", "images"}
    context = {"learning_rate": torch.tensor(work.rate)}
    graph = export_step(step, StepExample(state, {name: data[0][name] for name in sorted(used)}, context))
    session = open_session(graph, "1.19")
    now = {name: tensor.numpy() for name, tensor in state.items()}
    losses = []
    for batch in data:
        feeds = {STATE + name: array for name, array in now.items()} | {f"batch.{name}": batch[name].numpy() for name in used}
        outputs = session.run(feeds | {"context.learning_rate": np.array(work.rate, np.float32)})
        now = dict(zip(now, outputs[:-1], strict=True))
        losses.append(float(outputs[-1]))
    assert NEXT_STATE.startswith("next_")
    return losses, {name.removeprefix(WEIGHT): torch.from_numpy(array) for name, array in now.items() if name.startswith(WEIGHT)}


def check(work: Work, steps: int) -> None:
    data = batches(work.shape, steps)
    ours, weights = device_training(work, data)  # first: torch's loop changes the network's own weights
    theirs, expected = torch_training(work, data)
    assert theirs[-1] < theirs[0]
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
    for name, tensor in expected.items():
        difference = torch.linalg.vector_norm(weights[name] - tensor) / torch.linalg.vector_norm(tensor)
        assert difference < 1e-3, (name, float(difference))


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_two_hundred_steps_follow_torch(name: str) -> None:
    torch.manual_seed(0)
    check(WORKS[name](), 200)


def test_twenty_steps_follow_torch() -> None:
    torch.manual_seed(0)
    check(lenet(), 20)
