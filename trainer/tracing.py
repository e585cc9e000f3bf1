"""A local step traced into one flat graph of tensor operations.

Tracing runs autograd and vmap once, on example tensors, and records plain operations: what is left is the arithmetic
of forward, backward and update without the dispatch of ``torch.func``. The trace is only valid for the shapes and
dtypes it was made with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from trainer.methods.base import Batch, Context, LocalStep, Metrics, State
from trainer.passes import drop_empty_operations, fuse_bias, fuse_descent, separate_outputs

TraceKey = tuple[tuple[str, torch.Size, torch.dtype, torch.device], ...]

ACTIVE = "active"  # whether a client still takes steps: a batch input, (M,) bool, where clients take different numbers


def trace_key(*trees: State | Batch | Context) -> TraceKey:
    """Return what a trace depends on: names, shapes, dtypes and devices of its inputs."""
    return tuple((name, tensor.shape, tensor.dtype, tensor.device) for tensors in trees for name, tensor in sorted(tensors.items()))


def cohort_step(step: LocalStep) -> LocalStep:
    """Return the step of M clients at once: states and batches stacked, context shared; inactive clients stay as they are."""

    def masked(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        active = batch[ACTIVE]
        after, metrics = step(state, {name: tensor for name, tensor in batch.items() if name != ACTIVE}, context)
        kept = {name: torch.where(active, tensor, state[name]) for name, tensor in after.items()}
        return kept, {name: torch.where(active, tensor, torch.zeros_like(tensor)) for name, tensor in metrics.items()}

    def batched(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        result: tuple[State, Metrics] = vmap(masked if ACTIVE in batch else step, in_dims=(0, 0, None))(state, batch, context)
        return result

    return batched


def trace_step(step: LocalStep, state: State, batch: Batch, context: Context, *, in_place: bool = True) -> GraphModule:
    """Return a step as a traced graph with the same signature.

    Args:
        step: The step of one client, or of many.
        state: Example of the state.
        batch: Example of the batch.
        context: Example of the context.
        in_place: Whether the graph may overwrite the state that it is given.
    """
    names = list(state)

    def ordered(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        after, metrics = step(state, batch, context)
        return {name: after[name] for name in names}, metrics

    graph = make_fx(ordered)(state, batch, context)
    drop_empty_operations(graph)
    fuse_bias(graph)
    if in_place:
        fuse_descent(graph, len(names))
        separate_outputs(graph, len(names))
    return graph


def without_gradients(program: Callable[..., tuple[State, dict[str, Tensor]]]) -> LocalStep:
    """Return a program that runs outside autograd: a traced graph holds its own backward pass."""

    def run(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        with torch.no_grad():
            return program(state, batch, context)

    return run
