"""A method's local steps as entry points of a bundle, with the state that a device begins from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from edge_runtime.bundle import TRAINING
from edge_runtime.training_phase import CONTEXT_FILE, STATE_FILE
from export.runtimes import DEFAULT_TARGET, check_target
from export.step_parity import check_step
from export.step_tracing import BATCH, METRICS, NEXT_STATE, STATE, StepExample
from export.training_step import BATCH_AXIS, export_step
from protocol.errors import InputError
from protocol.manifest import GraphSpec, TensorSpec
from protocol.onnx_graph import inspect_graph
from protocol.tensors import encode_tensors
from trainer.data.federation import Participant
from trainer.methods.base import Method, Once, Repeat, State

EXAMPLE_ROWS = 7  # of a batch; no size that networks have


@dataclass(frozen=True, eq=False)
class TrainingParts:
    """What a bundle holds so that a device can train: graphs by entry point, and files by path."""

    graphs: dict[str, GraphSpec]
    files: dict[str, bytes]


def training_parts(method: Method, server: State, client: Participant, target_runtime: str = DEFAULT_TARGET) -> TrainingParts:
    """Return one graph for each phase that repeats a step, each having passed its gate, and the state before the first step.

    Args:
        method: The method.
        server: The server's state after training.
        client: A participant, whose data the steps are tried with; none of it is in the result.
        target_runtime: Oldest ONNX Runtime on the devices.

    Raises:
        InputError: A step cannot be exported, or the client has too few samples.
        ParityError: A graph does not change the state as torch does.
    """
    samples, labels = torch.from_numpy(client.samples), torch.from_numpy(client.labels)
    if len(labels) < EXAMPLE_ROWS:
        raise InputError("a step cannot be tried", expected=f"at least {EXAMPLE_ROWS} samples of {client.device}", got=len(labels))
    state = {**method.downlink(server, client.device), **method.private_state(server, client.device)}
    context, minimum = dict(method.context(server)), check_target(target_runtime)
    parts = TrainingParts({}, {STATE_FILE: _encode(state), CONTEXT_FILE: _encode(context)})
    for phase in method.phases():
        if isinstance(phase, Once):
            state = phase.function(state, samples, labels, context)
            continue
        example = StepExample(state, example_batch(phase, samples, labels), context)
        graph = export_step(phase.step, example)
        parity = check_step(phase.step, example, graph, minimum, batch_sizes=(2, 3, 7, 17, 64))
        facts = inspect_graph(graph)
        name = TRAINING + phase.step_name.removeprefix(TRAINING)
        path = f"graphs/{name}.onnx"
        inputs, outputs = _specs(phase, example)
        parts.files[path] = graph
        parts.graphs[name] = GraphSpec(path, inputs, outputs, facts.opsets[""], facts.ir_version, tuple(sorted(facts.operators)), parity)
    return parts


def example_batch(phase: Repeat, samples: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return a batch of 7 rows as a phase's step takes it."""
    generator = torch.Generator().manual_seed(0)
    batch = {"samples": samples[:EXAMPLE_ROWS], "labels": labels[:EXAMPLE_ROWS]}
    for each in phase.random_inputs:
        shape = (EXAMPLE_ROWS, *each.shape[1:])
        normal = each.kind == "normal"
        batch[each.name] = torch.randn(shape, generator=generator) if normal else torch.randint(0, 256, shape, generator=generator).byte()
    return batch


def _encode(tensors: State) -> bytes:
    """Return tensors as safetensors."""
    return encode_tensors({name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()})


def _specs(phase: Repeat, example: StepExample) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return inputs and outputs as the manifest writes them."""
    inputs = tuple(_spec(name, tensor) for name, tensor in example.inputs().items())
    _, metrics = phase.step(dict(example.state), example.batch, example.context)
    after = tuple(_spec(NEXT_STATE + name, tensor) for name, tensor in example.state.items())
    return inputs, (*after, *(_spec(METRICS + name, metrics[name]) for name in sorted(metrics)))


def _spec(name: str, tensor: Tensor) -> TensorSpec:
    """Return one tensor as the manifest writes it."""
    free = name.startswith(BATCH)
    shape = (BATCH_AXIS, *tensor.shape[1:]) if free else tuple(tensor.shape)
    meanings = {
        STATE: "state before the step",
        NEXT_STATE: "state after the step",
        BATCH: "batch",
        METRICS: "of the batch",
    }
    meaning = next((text for prefix, text in meanings.items() if name.startswith(prefix)), "fixed in a round")
    return TensorSpec(name, str(tensor.dtype).removeprefix("torch."), shape, meaning)
