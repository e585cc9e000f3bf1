"""Take away the exporter's notes on inner shapes; the runtime infers them itself.

Requires: nothing.
Ensures: only inputs and outputs state shapes, so a stale inner note cannot contradict the graph.
"""

from __future__ import annotations

import onnx


def drop_shape_hints(model: onnx.ModelProto) -> None:
    """Clear inner shapes in place."""
    model.graph.ClearField("value_info")
