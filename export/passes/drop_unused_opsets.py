"""Take away operator sets that no node is of: tools import all that they know.

Requires: nothing.
Ensures: every imported operator set is used, the default one apart.
"""

from __future__ import annotations

import onnx

from export.passes.base import Condition, GraphPass

DEFAULT_DOMAINS = ("", "ai.onnx")


def _used(model: onnx.ModelProto) -> set[str]:
    """Return the domains of all nodes, and the default one."""
    return {node.domain for node in model.graph.node} | set(DEFAULT_DOMAINS)


def _drop(model: onnx.ModelProto) -> None:
    """Keep the used operator sets, in place."""
    kept = [each for each in model.opset_import if each.domain in _used(model)]
    del model.opset_import[:]
    model.opset_import.extend(kept)


drop_unused_opsets = GraphPass(
    "drop_unused_opsets",
    _drop,
    ensures=(Condition("every imported operator set is used", lambda model: {each.domain for each in model.opset_import} <= _used(model)),),
)
