"""One local step, several lives: loop, batched, and an independent float64 reference agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edge_runtime.sampling import ClassIndex
from trainer.engine.base import Client, RoundKey
from trainer.engine.cohort import CohortEngine
from trainer.engine.loop import LoopEngine
from trainer.hypernetwork import HypernetworkSize
from trainer.methods.base import MethodSettings, Task
from trainer.methods.distribution_embedding import ExtractorSize
from trainer.methods.fedavg import FedAvg
from trainer.methods.hyperfedzero import HyperFedZero

TASK = Task((4, 4), "uint8", 0.0, 16.0, ("a", "b", "c"))
SMALL: dict[str, Any] = {
    "model": "mlp-6",
    "extractor": ExtractorSize(hidden=5, embedding=4),
    "local_steps": 3,
    "batch_size": 8,
    "hypernetwork": HypernetworkSize(16, 3, 7),
    "noise": True,
}
VARIANTS: list[MethodSettings] = [
    FedAvg(model="mlp-6", local_steps=3, batch_size=8),
    HyperFedZero(**SMALL),
    HyperFedZero(**SMALL, tailored="head"),
    HyperFedZero(**SMALL, scope="sample"),
    HyperFedZero(**{**SMALL, "noise": False}),
    HyperFedZero(**SMALL, balance_weight=0.1, entropy_weight=0.1, episode_probability=0.0, label_weight=0.0, prior="none"),
    HyperFedZero(**SMALL, tailored="none"),
    HyperFedZero(**SMALL, tailored="input"),
    HyperFedZero(**SMALL, base=False, balanced_softmax=0.0),
]


def make_clients(sizes: tuple[int, ...] = (20, 13, 31)) -> list[Client]:
    generator = np.random.default_rng(5)
    clients = []
    for place, size in enumerate(sizes):
        labels = generator.integers(0, 3, size)
        samples = torch.from_numpy(generator.integers(0, 17, (size, 4, 4)).astype(np.uint8))
        clients.append(Client(f"client-{place}", samples, torch.from_numpy(labels), ClassIndex(labels)))
    return clients


@pytest.mark.parametrize("chunk_size", [1, 2, 3])
def test_the_reported_loss_does_not_depend_on_engine_or_chunks(chunk_size: int) -> None:
    method = FedAvg(model="mlp-6", local_steps=3, batch_size=8).bind(TASK, torch.float64)
    state, clients = method.initial_state(1), make_clients()
    plain = LoopEngine().run_round(method, state, clients, RoundKey(3, 0)).loss
    assert CohortEngine(chunk_size).run_round(method, state, clients, RoundKey(3, 0)).loss == pytest.approx(plain, rel=1e-12)


def run(settings: MethodSettings, engine: LoopEngine | CohortEngine, dtype: torch.dtype, rounds: int = 5, reverse: bool = False) -> dict:
    method = settings.bind(TASK, dtype)
    state = method.initial_state(1)
    clients = make_clients()
    for number in range(rounds):
        result = engine.run_round(method, state, clients[::-1] if reverse else clients, RoundKey(3, number))
        state = method.aggregate(state, result.updates)
    return state


DOUBLE = [(settings, torch.float64, 1e-10) for settings in VARIANTS]
SINGLE = [(settings, torch.float32, 1e-4) for settings in VARIANTS[:2]]  # one of each method: a trace takes seconds


@pytest.mark.parametrize(("settings", "dtype", "tolerance"), DOUBLE + SINGLE)
def test_loop_and_cohort_reach_the_same_server_state(settings: MethodSettings, dtype: torch.dtype, tolerance: float) -> None:
    one, many = run(settings, LoopEngine(), dtype), run(settings, CohortEngine(chunk_size=2), dtype)
    assert one.keys() == many.keys()
    for name, tensor in one.items():
        assert (tensor - many[name]).abs().max() <= tolerance * max(1.0, float(tensor.abs().max())), name


@pytest.mark.parametrize("settings", VARIANTS[:2], ids=["fedavg", "hyperfedzero"])
def test_the_order_of_clients_and_the_chunks_do_not_matter(settings: MethodSettings) -> None:
    first = run(settings, CohortEngine(chunk_size=3), torch.float64)
    second = run(settings, CohortEngine(chunk_size=1), torch.float64, reverse=True)
    for name, tensor in first.items():
        torch.testing.assert_close(tensor, second[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("settings", VARIANTS[:2], ids=["fedavg", "hyperfedzero"])
def test_a_run_repeats_bit_for_bit_from_its_seed(settings: MethodSettings) -> None:
    first, second = (run(settings, CohortEngine(), torch.float32) for _ in range(2))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def reference_cross_entropy(scores: np.ndarray, labels: np.ndarray) -> float:
    log_sum = np.log(np.exp(scores - scores.max(1, keepdims=True)).sum(1)) + scores.max(1)
    return float(np.mean(log_sum - scores[np.arange(len(labels)), labels]))


def reference_loss(state: dict[str, np.ndarray], samples: np.ndarray, labels: np.ndarray, noise: np.ndarray) -> float:
    """HyperFedZero's loss written again in float64 numpy, straight from the formulas."""
    x = samples.reshape(len(samples), -1) / 16.0
    hidden = np.maximum(x @ state["extractor.hidden.weight"].T + state["extractor.hidden.bias"], 0)
    raw = hidden @ state["extractor.project.weight"].T + state["extractor.project.bias"]
    centred = raw - raw.mean(1, keepdims=True)
    logits = centred / np.sqrt(centred.var(1, keepdims=True) + 1e-5) / 0.5
    spread = np.log1p(np.exp(hidden @ state["extractor.noisy.weight"].T + state["extractor.noisy.bias"]))
    exponent = np.exp(logits + noise * spread)
    embeddings = exponent / exponent.sum(1, keepdims=True)
    read = np.log(embeddings + 1e-6) @ state["label_head.weight"].T + state["label_head.bias"]
    embedding = embeddings.mean(0)
    condition = embedding * np.sqrt(len(embedding))
    pre = state["hypernetwork.from_condition.weight"] @ condition + state["hypernetwork.from_condition.bias"]
    units = np.maximum(pre + state["hypernetwork.chunk_embeddings"] @ state["hypernetwork.from_chunk.weight"].T, 0)
    chunks = units @ state["hypernetwork.write"]  # six chunks of 16 for w1, one for both biases, two for w2
    w1 = chunks[:6].reshape(6, 16) / 4.0 + state.get("classifier.layers.0.weight", 0)
    b1 = chunks[6, :6] * 0.05 + state.get("classifier.layers.0.bias", 0)
    b2 = chunks[6, 6:9] * 0.05 + state.get("classifier.layers.1.bias", 0)
    w2 = chunks[7:].ravel()[:18].reshape(3, 6) / np.sqrt(6.0) + state.get("classifier.layers.1.weight", 0)
    scores = np.maximum(x @ w1.T + b1, 0) @ w2.T + b2
    shift = 0.7 * np.log(np.bincount(labels, minlength=3) / len(labels) + 1e-4)
    return reference_cross_entropy(scores + shift, labels) + 0.4 * reference_cross_entropy(read + shift, labels)


@pytest.mark.parametrize("base", [True, False])
def test_the_step_of_hyperfedzero_matches_numpy_and_finite_differences(base: bool) -> None:
    method = HyperFedZero(**SMALL, label_weight=0.4, balanced_softmax=0.7, base=base).bind(TASK, torch.float64)
    state = method.initial_state(2)
    generator = np.random.default_rng(0)
    samples = generator.integers(0, 17, (8, 4, 4)).astype(np.uint8)
    labels, noise = generator.integers(0, 3, 8), generator.standard_normal((8, 4))
    batch = {"samples": torch.from_numpy(samples), "labels": torch.from_numpy(labels), "noise": torch.from_numpy(noise)}
    rate = 1e-3
    after, metrics = method.step(state, batch, {"learning_rate": torch.tensor(rate, dtype=torch.float64)})
    arrays = {name: tensor.numpy().copy() for name, tensor in state.items()}
    assert float(metrics["loss"]) == pytest.approx(reference_loss(arrays, samples, labels, noise), rel=1e-12)
    norm_squared = 0.0
    for name, tensor in state.items():
        moved = ((tensor - after[name]) / rate).numpy()  # the gradient, as the norm stays below the clip
        norm_squared += float((moved**2).sum())
        for place in ([tuple(0 for _ in moved.shape)], [tuple(size - 1 for size in moved.shape)]):
            step = 1e-6
            up, down = ({key: value.copy() for key, value in arrays.items()} for _ in range(2))
            up[name][place[0]] += step
            down[name][place[0]] -= step
            slope = (reference_loss(up, samples, labels, noise) - reference_loss(down, samples, labels, noise)) / (2 * step)
            assert moved[place[0]] == pytest.approx(slope, rel=1e-4, abs=1e-7), name
    assert norm_squared < method.settings.clip_norm**2
