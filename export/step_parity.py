"""The gate for training steps: a graph must change the state as torch does.

What is compared is the change, not the state: a wrong gradient at a small learning rate hides in the weights' own size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from edge_runtime.sessions import open_session
from export.parity import ABSOLUTE_TOLERANCE, BATCH_SIZES, RELATIVE_TOLERANCE, check_valid
from export.step_tracing import METRICS, NEXT_STATE, STATE, StepExample
from protocol.errors import ParityError
from protocol.manifest import Parity
from trainer.methods.base import LocalStep

CHANGE_TOLERANCE = 1e-3  # of the largest change of a tensor
ROUNDINGS = 4  # units in the last place of the largest weight

Array = NDArray[np.generic]


def check_step(
    step: LocalStep, example: StepExample, graph: bytes, minimum_runtime: str, batch_sizes: Sequence[int] = BATCH_SIZES
) -> Parity:
    """Return how closely a graph follows its step.

    Args:
        step: The original.
        example: State and context to start from; batches are made of its rows, taken again and again.
        graph: The bytes that will be shipped.
        minimum_runtime: Oldest ONNX Runtime that the bundle promises.
        batch_sizes: Rows of the batches to try.

    Raises:
        ParityError: Not a valid model, or another result.
    """
    check_valid("the training step", graph)
    session = open_session(graph, minimum_runtime)
    worst = 0.0
    for size in batch_sizes:
        tried = _with_batch(example, size)
        expected = _run_torch(step, tried)
        feeds = {name: tensor.numpy() for name, tensor in tried.inputs().items() if name in session.input_names}
        try:
            got = dict(zip(expected, session.run(feeds), strict=True))
        except Exception as error:  # ONNX Runtime raises classes of its own without a common root
            raise ParityError(f"the training step fails at batch {size}", got=str(error)[:300]) from error
        worst = max([worst, *(_compare(name, size, got[name], expected[name], tried) for name in expected)])
    return Parity(tuple(batch_sizes), ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, worst, None)


def _with_batch(example: StepExample, size: int) -> StepExample:
    """Return the example with a batch of ``size`` rows."""
    rows = torch.arange(size) % example.batch_size
    batch = {name: tensor[rows] for name, tensor in example.batch.items()}
    own = object.__new__(StepExample)  # a batch of one row is fine here: nothing is traced with it
    for name, value in (("state", example.state), ("batch", batch), ("context", example.context)):
        object.__setattr__(own, name, value)
    return own


def _run_torch(step: LocalStep, example: StepExample) -> dict[str, Array]:
    """Return the outputs by their name in the graph."""
    after, metrics = step(dict(example.state), example.batch, example.context)
    named = {NEXT_STATE + name: after[name] for name in example.state} | {METRICS + name: metrics[name] for name in sorted(metrics)}
    return {name: tensor.detach().numpy() for name, tensor in named.items()}


def _compare(name: str, size: int, got: Array, expected: Array, example: StepExample) -> float:
    """Return the largest absolute difference, or refuse one beyond the tolerances."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise ParityError(f"{name} has another shape or dtype", expected=(expected.shape, expected.dtype), got=(got.shape, got.dtype))
    ours, theirs = got.astype(np.float64), expected.astype(np.float64)
    worst = float(np.abs(ours - theirs).max(initial=0.0))
    if name.startswith(NEXT_STATE):
        before = example.inputs()[STATE + name.removeprefix(NEXT_STATE)].numpy().astype(np.float64)
        rounding = ROUNDINGS * float(np.finfo(np.float32).eps) * float(np.abs(theirs).max(initial=0.0))
        allowed = CHANGE_TOLERANCE * float(np.abs(theirs - before).max(initial=0.0)) + rounding
    else:
        allowed = ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * float(np.abs(theirs).max(initial=0.0))
    if not worst <= allowed:  # NaN compares false
        raise ParityError(f"{name} differs from torch at batch {size}", expected=f"at most {allowed:.3g}", got=f"{worst:.3g}")
    return worst
