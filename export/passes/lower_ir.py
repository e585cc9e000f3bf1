"""Stamp the IR version that old runtimes load.

Requires: no metadata on nodes (an IR 10 feature), no functions, no tensor kinds newer than IR 8.
Ensures: IR version 8, which ONNX Runtime loads since 1.12.
"""

from __future__ import annotations

import onnx

from protocol.errors import IncompatibleVersionError

IR_VERSION = 8
NEWER_TYPES = range(onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT8E4M3FN + 16)


def lower_ir(model: onnx.ModelProto) -> None:
    """Set the IR version in place.

    Raises:
        IncompatibleVersionError: The graph uses what IR 8 does not have.
    """
    has_newer_types = any(tensor.data_type in NEWER_TYPES for tensor in model.graph.initializer)
    has_metadata = any(node.metadata_props for node in model.graph.node)
    if model.functions or has_newer_types or has_metadata:
        raise IncompatibleVersionError(
            "the graph needs a newer IR version",
            expected=f"what IR {IR_VERSION} can say",
            got="functions, node metadata or a newer tensor type",
            hint="strip metadata first; keep weights in float32",
        )
    model.ir_version = IR_VERSION
