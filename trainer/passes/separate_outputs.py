"""Give each output of a step memory of its own, so that the next step may write into one and leave the others alone.

A step may hand out one tensor under two names, a tensor of the context as part of the state, or a row repeated for all
clients. As values these are fine; written in place, one would change with the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from trainer.passes.memory import memory_of, viewed

aten = torch.ops.aten


def separate_outputs(graph: GraphModule, state_inputs: int) -> None:
    """Copy outputs that share their memory with another output, with an input that is no state, or among their own entries.

    Requires: the first ``state_inputs`` placeholders and outputs are the state. Ensures: the same outputs, bit for bit.
    """
    nodes = list(graph.graph.nodes)
    state = set([node for node in nodes if node.op == "placeholder"][:state_inputs])
    outputs: list[Any] = list(nodes[-1].args[0])
    taken: set[Node] = set()
    for place, node in enumerate(outputs):
        if not isinstance(node, Node):
            continue
        memory = memory_of(node)
        foreign = memory.op != "call_function" and not (place < state_inputs and memory in state)
        if foreign or memory in taken or _repeats_entries(node):
            with graph.graph.inserting_before(nodes[-1]):
                outputs[place] = graph.graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
            outputs[place].meta = node.meta
        taken.add(memory)
    nodes[-1].args = (outputs,)
    graph.recompile()


def _repeats_entries(node: Node) -> bool:
    """Tell whether several entries of a node may lie in one place."""
    source = viewed(node)
    return source is not None and (node.target is aten.expand.default or _repeats_entries(source))
