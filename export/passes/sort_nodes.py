"""Put every node after those whose results it reads, as the format asks; converters to half precision append theirs at the end.

Requires: nothing.
Ensures: no node reads what only a later node makes.
"""

from __future__ import annotations

import onnx

from export.passes.base import Condition, GraphPass


def _sort(model: onnx.ModelProto) -> None:
    """Order the nodes in place, keeping the order of the file wherever it is free; a cycle stays as it is."""
    graph = model.graph
    waiting, known, ordered = list(graph.node), _given(graph), []
    while waiting:
        ready = next((node for node in waiting if all(name in known for name in node.input)), None)
        if ready is None:
            break
        waiting.remove(ready)
        ordered.append(ready)
        known.update(ready.output)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (*ordered, *waiting)]
    del graph.node[:]
    graph.node.extend(nodes)


def _given(graph: onnx.GraphProto) -> set[str]:
    """Return the names that no node makes, an input left out among them."""
    return {"", *(each.name for each in graph.input), *(each.name for each in graph.initializer)}


def _is_sorted(model: onnx.ModelProto) -> bool:
    """Tell whether every node finds what it reads."""
    known = _given(model.graph)
    for node in model.graph.node:
        if not known.issuperset(node.input):
            return False
        known.update(node.output)
    return True


sort_nodes = GraphPass("sort_nodes", _sort, ensures=(Condition("every node stands after those it reads from", _is_sorted),))
