"""Take out operations that leave a tensor as it was; autograd and vmap leave hundreds, and each costs a dispatch."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from trainer.passes.memory import is_written

aten = torch.ops.aten
RESHAPING = frozenset({aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.alias.default})  # noqa: SLF001  # an operator's name
TRANSPOSING = frozenset({aten.transpose.int, aten.t.default})


def drop_empty_operations(graph: GraphModule) -> None:
    """Remove views to the same shape, transposes of transposes and multiplications by one.

    Requires: nodes carry the tensors that tracing saw. Ensures: the same outputs, bit for bit.
    """
    for node in graph.graph.nodes:
        same = _unchanged_source(node)
        if same is not None:
            node.replace_all_uses_with(same)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _unchanged_source(node: Node) -> Node | None:
    """Return the earlier node that holds the same values as this one, if there is one."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return None
    if node.target in RESHAPING and shape_of(node) == shape_of(source):
        return source
    if node.target is aten.mul.Scalar and node.args[1] == 1 and same_kind(node, source):
        return None if is_written(node) or is_written(source) else source  # the product is a copy, which may have been made on purpose
    if node.target in TRANSPOSING and source.target in TRANSPOSING and _axes(node) == _axes(source):
        inner = source.args[0]
        return inner if isinstance(inner, Node) else None
    return None


def shape_of(node: Node) -> torch.Size | None:
    """Return the shape that tracing saw."""
    value = node.meta.get("val")
    return value.shape if isinstance(value, torch.Tensor) else None


def same_kind(node: Node, other: Node) -> bool:
    """Tell whether two nodes hold tensors of the same shape and dtype."""
    value, own = node.meta.get("val"), other.meta.get("val")
    return isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor) and (value.shape, value.dtype) == (own.shape, own.dtype)


def _axes(node: Node) -> set[int]:
    """Return the two axes that a transpose exchanges, counted from the front."""
    shape = shape_of(node)
    if node.target is aten.t.default or shape is None:
        return {0, 1}
    return {axis % len(shape) for axis in node.args[1:] if isinstance(axis, int)}
