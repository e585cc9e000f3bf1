"""Take away everything that does not compute: traces of source files, developer paths, doc strings, producer names.

Requires: nothing.
Ensures: no node, value, tensor or graph carries metadata or a doc string.
"""

from __future__ import annotations

import onnx


def strip_metadata(model: onnx.ModelProto) -> None:
    """Clear metadata in place."""
    for field in ("doc_string", "producer_name", "producer_version", "domain", "model_version", "metadata_props"):
        model.ClearField(field)
    graph = model.graph
    graph.name = "graph"
    for holder in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        holder.ClearField("doc_string")
        holder.ClearField("metadata_props")
    for node in graph.node:
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
