"""Exact simplification of a freshly exported model: functions inlined, constants folded, what nobody reads removed.

The exporter's own clean-up takes numbers within 1e-8 of zero for zero and within 1e-5 of one for one, so the epsilon of Adam or of
a norm goes without a word and a division by zero is left. Only steps that change no value are taken here.
"""

from __future__ import annotations

import onnx_ir
from onnx_ir.passes import Sequential, common
from onnxscript import optimizer


def simplify(model: onnx_ir.Model) -> onnx_ir.Model:
    """Return the model, simplified in place."""
    common.InlinePass()(model)
    optimizer.fold_constants(model)
    tidy = Sequential(
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )
    tidy(model)
    return model
