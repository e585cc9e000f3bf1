"""A local step traced into one flat graph of tensor operations.

Tracing runs autograd and vmap once, on example tensors, and records plain operations: what is left is the arithmetic
of forward, backward and update without the dispatch of ``torch.func``. The trace is only valid for the shapes and
dtypes it was made with.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.func import vmap
from torch.fx.experimental.proxy_tensor import make_fx

from trainer.methods.base import Batch, Context, LocalStep, Metrics, State

TraceKey = tuple[tuple[str, torch.Size, torch.dtype], ...]


def trace_key(state: State, batch: Batch) -> TraceKey:
    """Return what a trace depends on: names, shapes and dtypes of state and batch."""
    return tuple((name, tensor.shape, tensor.dtype) for tensors in (state, batch) for name, tensor in sorted(tensors.items()))


def trace_cohort_step(step: LocalStep, state: State, batch: Batch, context: Context) -> LocalStep:
    """Return the step of M clients at once as a traced graph.

    Args:
        step: The step of one client.
        state: Example of the stacked states, each (M, *shape).
        batch: Example of the stacked batches, each (M, *shape).
        context: Example of the context, shared by the clients.
    """
    batched = vmap(step, in_dims=(0, 0, None))

    def positional(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        result: tuple[State, Metrics] = batched(state, batch, context)
        return result

    graph: Callable[[State, Batch, Context], tuple[State, Metrics]] = make_fx(positional)(state, batch, context)

    def run(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        with torch.no_grad():  # the graph holds its own backward pass
            return graph(state, batch, context)

    return run
