"""A local step traced into one flat graph of tensor operations.

Tracing runs autograd and vmap once, on example tensors, and records plain operations: what is left is the arithmetic
of forward, backward and update without the dispatch of ``torch.func``. The trace is only valid for the shapes and
dtypes it was made with.
"""

from __future__ import annotations

import torch
from torch.func import vmap
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from trainer.methods.base import Batch, Context, LocalStep, Metrics, State

RESHAPING = frozenset({"aten.view.default", "aten._unsafe_view.default", "aten.expand.default", "aten.alias.default"})

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

    graph = make_fx(positional)(state, batch, context)
    drop_empty_operations(graph)

    def run(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        with torch.no_grad():  # the graph holds its own backward pass
            result: tuple[State, Metrics] = graph(state, batch, context)
            return result

    return run


def drop_empty_operations(graph: GraphModule) -> None:
    """Take out views and expansions that leave a shape as it was; vmap leaves hundreds, and each costs a dispatch."""
    for node in graph.graph.nodes:
        if str(node.target) in RESHAPING and _shape(node) == _shape(node.args[0]):
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _shape(node: Node) -> torch.Size | None:
    """Return the shape that tracing saw."""
    value = node.meta.get("val")
    return value.shape if isinstance(value, torch.Tensor) else None
