"""Gradients in ONNX against torch's, for each kind of layer and loss, at several batch sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from export.step_parity import check_step
from export.step_tracing import StepExample
from export.training_step import export_step
from protocol.errors import InputError, ParityError
from protocol.graph_sizes import check_sizes
from protocol.onnx_graph import inspect_graph
from protocol.operators import ALLOWED_OPERATORS
from tests.export.steps.layers import LAYERS, LOSSES, Loss, squared_error, step_of, weights_of
from trainer.methods.base import Batch, Context, Metrics, State

ROWS = 5
SIZES = (2, 3, 7)
QUICK_LAYERS = (
    "linear",
    "conv with stride and padding",
    "transposed conv in groups",
    "average pooling",
    "max pooling of equals",
    "fused attention",
)
QUICK_LOSSES = ("cross-entropy", "distillation")


def check(network: nn.Module, loss: Loss, batch: dict[str, torch.Tensor]) -> bytes:
    """Export a step on a network and compare."""
    step = step_of(network, loss)
    example = StepExample(weights_of(network), batch, {"rate": torch.tensor(0.1)})
    graph = export_step(step, example)
    parity = check_step(step, example, graph, "1.19", SIZES)
    assert parity.worst_absolute_difference < 1e-5
    facts = inspect_graph(graph)
    assert facts.operators <= ALLOWED_OPERATORS
    shapes = {each.name: ["batch" if size is None else size for size in each.shape or ()] for each in facts.input_values}
    check_sizes(facts.nodes, shapes, facts.constants, facts.constant_shapes)
    assert (facts.ir_version, facts.opsets) == (8, {"": 18})
    return graph


def check_layer(kind: str) -> None:
    torch.manual_seed(1)
    make, shape = LAYERS[kind]
    network = make()
    samples = torch.randn(ROWS, *shape)
    check(network, squared_error, {"samples": samples, "target": torch.randn_like(network(samples)).detach()})


def check_loss(kind: str) -> None:
    torch.manual_seed(2)
    labels = torch.tensor([0, 1, 2, 3, 1])
    check(nn.Linear(6, 4), LOSSES[kind], {"samples": torch.randn(ROWS, 6), "labels": labels, "teacher": torch.randn(ROWS, 4)})


@pytest.mark.parametrize("kind", QUICK_LAYERS)
def test_gradients_of_layers(kind: str) -> None:
    check_layer(kind)


@pytest.mark.parametrize("kind", QUICK_LOSSES)
def test_gradients_of_losses(kind: str) -> None:
    check_loss(kind)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind not in QUICK_LAYERS])
def test_gradients_of_every_other_layer(kind: str) -> None:
    check_layer(kind)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in LOSSES if kind not in QUICK_LOSSES])
def test_gradients_of_every_other_loss(kind: str) -> None:
    check_loss(kind)


def test_gradients_of_an_embedding() -> None:
    torch.manual_seed(3)
    check(nn.Embedding(9, 4), squared_error, {"samples": torch.randint(0, 9, (ROWS, 3)), "target": torch.randn(ROWS, 3, 4)})


def linear_example(rows: int = ROWS) -> tuple[nn.Linear, StepExample]:
    network = nn.Linear(6, 4)
    batch = {"samples": torch.randn(rows, 6), "labels": torch.randint(0, 4, (rows,))}
    return network, StepExample(weights_of(network), batch, {"rate": torch.tensor(1e-6)})


def test_a_gradient_too_large_is_found_even_at_a_tiny_rate() -> None:
    network, example = linear_example()
    right = step_of(network, LOSSES["cross-entropy"])
    wrong = step_of(network, lambda outputs, batch: LOSSES["cross-entropy"](outputs, batch) * outputs.shape[0])

    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        return right(state, batch, context)[0], wrong(state, batch, context)[1]

    with pytest.raises(ParityError, match=r"metrics\.loss differs"):
        check_step(right, example, export_step(step, example), "1.19", SIZES)

    def swapped(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        return wrong(state, batch, context)[0], right(state, batch, context)[1]

    with pytest.raises(ParityError, match=r"next_state\.(weight|bias) differs"):
        check_step(right, example, export_step(swapped, example), "1.19", SIZES)


def test_a_batch_size_that_became_a_number_is_named() -> None:
    network, example = linear_example()

    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        half = len(batch["labels"]) // 2
        return step_of(network, LOSSES["cross-entropy"])(state, {name: tensor[:half] for name, tensor in batch.items()}, context)

    with pytest.raises(InputError, match=r"tensor\.shape\[0\]"):
        export_step(step, example)


@pytest.mark.parametrize("batch", [{"x": torch.zeros(1, 2)}, {"x": torch.zeros(3, 2), "y": torch.zeros(2)}, {"x": torch.tensor(1.0)}, {}])
def test_an_example_that_cannot_stand_for_other_batches_is_refused(batch: dict[str, torch.Tensor]) -> None:
    with pytest.raises(InputError, match="example batch"):
        StepExample({}, batch, {})


def test_a_step_that_loses_a_weight_is_refused() -> None:
    network, example = linear_example()

    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        after, metrics = step_of(network, LOSSES["cross-entropy"])(state, batch, context)
        return {"weight": after["weight"]}, metrics

    with pytest.raises(InputError, match="which tensors its state holds"):
        export_step(step, example)


@pytest.mark.parametrize(
    ("function", "named", "instead"),
    [
        (lambda outputs, batch: torch.cdist(outputs, outputs).sum(), "pairwise distances", "squared differences"),
        (lambda outputs, batch: torch.linalg.svdvals(outputs[:, :2].T @ outputs[:, :2]).sum(), "factorisation|singular", "product with"),
        (lambda outputs, batch: torch.nn.functional.dropout(outputs, 0.5).sum(), "random numbers", "input of the batch"),
    ],
)
def test_what_cannot_be_exported_is_named_with_what_to_use_instead(function: Loss, named: str, instead: str) -> None:
    network, example = linear_example()
    with pytest.raises(InputError, match=named) as caught:
        export_step(step_of(network, function), example)
    assert instead in str(caught.value)
