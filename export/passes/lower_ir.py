"""Stamp the IR version that old runtimes load.

Requires: no metadata (on nodes an IR 10 feature), no functions, no tensor kinds newer than IR 8.
Ensures: IR version 8, which ONNX Runtime loads since 1.12.
"""

from __future__ import annotations

import onnx

from export.passes.base import Condition, GraphPass
from export.passes.strip_metadata import NO_METADATA
from protocol.errors import IncompatibleVersionError

IR_VERSION = 8
NEWER_TYPES = range(onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT8E4M3FN + 16)


def _stamp(model: onnx.ModelProto) -> None:
    """Set the IR version in place."""
    model.ir_version = IR_VERSION


def _has_old_types(model: onnx.ModelProto) -> bool:
    """Tell whether every tensor is of a kind that IR 8 knows."""
    return all(tensor.data_type not in NEWER_TYPES for tensor in model.graph.initializer)


lower_ir = GraphPass(
    "lower_ir",
    _stamp,
    requires=(
        NO_METADATA,
        Condition(f"no functions, which IR {IR_VERSION} cannot hold", lambda model: not model.functions),
        Condition(f"tensor types that IR {IR_VERSION} knows", _has_old_types, "keep weights in float32"),
    ),
    ensures=(Condition(f"IR version {IR_VERSION}", lambda model: model.ir_version == IR_VERSION),),
    error=IncompatibleVersionError,
)
