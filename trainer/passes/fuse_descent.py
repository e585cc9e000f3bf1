"""Write the descent step into the weights where they lie.

A step ends in ``weight - rate * gradient`` for each weight. Traced as it stands, that makes the gradient, its product with
the rate and the new weight, three tensors as large as the weight. Where the gradient is a matrix product, its product with
the rate can be added to the weight by the matrix product itself; elsewhere the weight is updated in place. Stacked states
outgrow the processor's cache, so this is where the time of a small step goes.

Source of the idea: fused optimisers; ``baddbmm`` is BLAS's GEMM with beta = 1.
"""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node

from trainer.passes.drop_empty_operations import same_kind
from trainer.passes.memory import memory_of, readers_of

aten = torch.ops.aten
MATRIX_PRODUCTS = {aten.bmm.default: aten.baddbmm_.default, aten.mm.default: aten.addmm_.default}


def fuse_descent(graph: GraphModule, state_inputs: int) -> None:
    """Update the state's tensors in place.

    Requires: the first ``state_inputs`` placeholders are the state, which the caller owns and gives up. Ensures: the same
    outputs up to rounding; the outputs of updated weights are the inputs' own memory.
    """
    nodes = list(graph.graph.nodes)
    order = {node: place for place, node in enumerate(nodes)}
    state = [node for node in nodes if node.op == "placeholder"][:state_inputs]
    for weight in state:
        update = _descent_of(weight, order)
        if update is not None:
            order[_write_in_place(graph.graph, weight, update, set(state))] = order[update]
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _descent_of(weight: Node, order: dict[Node, int]) -> Node | None:
    """Return the node ``weight - something`` if it is the last of all that read the weight's memory."""
    updates = [user for user in weight.users if user.target is aten.sub.Tensor and user.args[0] is weight and not user.kwargs]
    if len(updates) != 1 or not same_kind(updates[0], weight):
        return None
    step = updates[0].args[1]
    if isinstance(step, Node) and step is not weight and memory_of(step) is weight:  # entries would be read after they are written
        return None
    readers = readers_of(weight) - {updates[0]}
    late = [reader for reader in readers if order.get(reader, -1) > order[updates[0]] or reader.op == "output"]
    return None if late else updates[0]


def _write_in_place(graph: Graph, weight: Node, update: Node, state: set[Node]) -> Node:
    """Replace the update by one that writes into the weight, and return it."""
    step = update.args[1]
    with graph.inserting_before(update):
        written = _scaled_update(graph, weight, step, state) if isinstance(step, Node) else None
        if written is None:
            written = graph.call_function(aten.sub_.Tensor, (weight, step))
    written.meta = update.meta
    update.replace_all_uses_with(written)
    return written


def _scaled_update(graph: Graph, weight: Node, step: Node, state: set[Node]) -> Node | None:
    """Return the operation that adds a step ``rate * gradient`` to the weight in one pass, or None if the step is no such thing.

    It reads the step's factors later than the step did: none of them may lie in the state, which other updates overwrite.
    """
    if step.target is not aten.mul.Tensor or len(step.users) != 1 or not same_kind(step, weight):
        return None
    rate, gradient = step.args
    if not (isinstance(rate, Node) and isinstance(gradient, Node)) or not same_kind(gradient, weight):
        return None
    if not _same_dtype_or_scalar(rate, weight):
        return None
    if gradient.target in MATRIX_PRODUCTS and len(gradient.users) == 1 and _numel(rate) == 1:
        left, right = gradient.args
        if not _lie_outside(state, rate, left, right):
            return None
        scaled = graph.call_function(aten.mul.Tensor, (left, graph.call_function(aten.neg.default, (rate,))))
        return graph.call_function(MATRIX_PRODUCTS[gradient.target], (weight, scaled, right))
    if not _lie_outside(state, rate, gradient):
        return None
    return graph.call_function(aten.addcmul_.default, (weight, gradient, graph.call_function(aten.neg.default, (rate,))))


def _lie_outside(state: set[Node], *nodes: object) -> bool:
    """Tell whether no node reads the state's memory."""
    return all(isinstance(node, Node) and memory_of(node) not in state for node in nodes)


def _same_dtype_or_scalar(rate: Node, weight: Node) -> bool:
    """Tell whether a product with the rate keeps the weight's dtype: a tensor without axes does not count."""
    value, own = rate.meta.get("val"), weight.meta.get("val")
    return isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor) and (value.dtype == own.dtype or value.ndim == 0)


def _numel(node: Node) -> int:
    """Return how many elements tracing saw."""
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else 0
