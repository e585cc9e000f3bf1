"""Take away the exporter's notes on inner shapes; the runtime infers them itself.

Requires: nothing.
Ensures: only inputs and outputs state shapes, so a stale inner note cannot contradict the graph.
"""

from __future__ import annotations

import onnx

from export.passes.base import Condition, GraphPass


def _drop(model: onnx.ModelProto) -> None:
    """Clear inner shapes in place."""
    model.graph.ClearField("value_info")


drop_shape_hints = GraphPass("drop_shape_hints", _drop, ensures=(Condition("no inner shapes", lambda model: not model.graph.value_info),))
