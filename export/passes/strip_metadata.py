"""Take away everything that does not compute: traces of source files, developer paths, doc strings, producer names.

Requires: nothing.
Ensures: no node, value, tensor or graph carries metadata or a doc string; the graph has a name that says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx

from export.passes.base import Condition, GraphPass

MODEL_FIELDS = ("doc_string", "producer_name", "producer_version", "domain", "model_version", "metadata_props")
GRAPH_NAME = "graph"


def _clear(model: onnx.ModelProto) -> None:
    """Clear metadata in place."""
    for field in MODEL_FIELDS:
        model.ClearField(field)
    model.graph.name = GRAPH_NAME
    model.graph.ClearField("quantization_annotation")
    for holder in _holders(model):
        holder.ClearField("doc_string")
        holder.ClearField("metadata_props")
    for node in model.graph.node:
        for attribute in node.attribute:
            attribute.ClearField("doc_string")


def _holders(model: onnx.ModelProto) -> Iterator[Any]:
    """Yield all that can carry metadata and a doc string."""
    graph = model.graph
    yield from (graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info)


def _is_clear(model: onnx.ModelProto) -> bool:
    """Tell whether no note is left."""
    named = any(getattr(model, field) for field in MODEL_FIELDS)
    attributes = any(attribute.doc_string for node in model.graph.node for attribute in node.attribute)
    return not (named or attributes or any(holder.doc_string or holder.metadata_props for holder in _holders(model)))


NO_METADATA = Condition("no metadata and no doc string", _is_clear, "strip metadata first")
strip_metadata = GraphPass("strip_metadata", _clear, ensures=(NO_METADATA,))
