"""Let a batched matrix product add its bias: vmap splits a linear layer into a product and an addition."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from trainer.passes.drop_empty_operations import same_kind, shape_of

aten = torch.ops.aten


def fuse_bias(graph: GraphModule) -> None:
    """Replace ``bias + bmm(a, b)`` by ``baddbmm(bias, a, b)`` where nothing else reads the product.

    Ensures: the same outputs up to the rounding of one addition.
    """
    for node in list(graph.graph.nodes):
        if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs:
            continue
        for bias, product in (node.args, node.args[::-1]):
            if _fits(node, bias, product):
                with graph.graph.inserting_before(node):
                    fused = graph.graph.call_function(aten.baddbmm.default, (bias, *product.args))
                fused.meta = node.meta
                node.replace_all_uses_with(fused)
                break
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _fits(node: Node, bias: object, product: object) -> bool:
    """Tell whether ``node`` is a bias plus a product that only it reads."""
    if not (isinstance(bias, Node) and isinstance(product, Node) and product.target is aten.bmm.default):
        return False
    value, own = bias.meta.get("val"), product.meta.get("val")
    same_dtype = isinstance(value, torch.Tensor) and isinstance(own, torch.Tensor) and value.dtype == own.dtype
    return len(product.users) == 1 and same_kind(product, node) and same_dtype and len(shape_of(bias) or ()) == 3
