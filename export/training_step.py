"""A local step as an ordinary inference graph: forward, backward and update in plain ONNX.

ONNX Runtime has had no training package since 1.19.2, and needs none: a gradient is arithmetic too. The inputs of the graph are
``state.NAME``, ``batch.NAME`` and ``context.NAME``; its outputs ``next_state.NAME`` and ``metrics.NAME``. A loop on the device
feeds ``next_state`` back as ``state``.
"""

from __future__ import annotations

import torch

from export.graphs import convert
from export.step_tracing import BATCH, StepExample, trace_for_export
from trainer.methods.base import LocalStep

BATCH_AXIS = "batch"


def export_step(step: LocalStep, example: StepExample) -> bytes:
    """Return a step as single-file ONNX bytes: opset 18, IR 8, free batch axis.

    Args:
        step: (state, batch, context) -> (state, metrics): pure, random numbers only as batch inputs, in float32. Losses, gradients
            by ``torch.func``, clipping and optimisers are just part of it; slots of an optimiser are part of the state.
        example: Tensors of the right shapes and dtypes; their values do not matter.

    Raises:
        InputError: The step uses what cannot be exported; says which operation, and what to use instead.
    """
    traced = trace_for_export(step, example)
    axis = torch.export.Dim(BATCH_AXIS)
    inputs = example.inputs()
    shapes = [{0: axis} if name.startswith(BATCH) else {} for name in inputs]
    return convert(traced.program, tuple(inputs.values()), traced.inputs, traced.outputs, tuple(shapes), "the training step")
