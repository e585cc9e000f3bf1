"""Say in one sentence why the exporter failed: which operation, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator

from protocol.errors import InputError

OPERATION = re.compile(r"op='([\w.]+)'")
CONTROL_FLOW = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")
CONSTANT_AXES = ("ConstraintViolationError", "Constraints violated")
INSTEAD = {
    "cdist": "write the squared differences out: ((a[:, None] - b[None]) ** 2).sum(-1)",
    "convolution_backward": "decompose the gradient of the convolution into convolutions before exporting",
    "linalg": "decompose matrices before exporting and pass the factors as weights",
    "attention": "write attention out as matmul and softmax",
    "adaptive_avg_pool": "average with mean over the axes",
    "avg_pool": "average with mean over the axes, or with a convolution of constant weights",
    "nll_loss": "write the loss as log-softmax, gather and mean",
    "rand": "take random numbers as an input",
    "bernoulli": "take random numbers as an input",
}
GENERAL = "write it with plain arithmetic, matmul, convolution, softmax, reshape and where"


def export_failure(name: str, error: BaseException) -> InputError:
    """Return the error for a failed export.

    Args:
        name: The entry point.
        error: What the exporter raised.
    """
    what = f"the module for {name} cannot be exported"
    chain = list(_causes(error))
    text = "\n".join(str(each) for each in chain)
    operations = OPERATION.findall(text)
    if operations:
        operation = operations[0]
        hint = next((advice for key, advice in INSTEAD.items() if key in operation), GENERAL)
        return InputError(what, expected="operations that ONNX has", got=operation, hint=f"instead of {operation}: {hint}")
    kinds = " ".join(type(each).__name__ for each in chain)
    if any(kind in text or kind in kinds for kind in CONTROL_FLOW):
        hint = "Python cannot branch on, or size tensors by, what a tensor holds: use torch.where"
        return InputError(what, expected="the same operations for all values", got="control flow that depends on values", hint=hint)
    if any(mark in text or mark in kinds for mark in CONSTANT_AXES):
        hint = "use x.shape[0] or -1 instead of a number for the size of a named axis"
        return InputError(what, expected="named axes of any size", got="code that fixes the size of an axis", hint=hint)
    root = chain[-1]
    return InputError(what, got=f"{type(root).__name__}: {_first_line(root)}", hint="call the module by hand on tensors of these shapes")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__


def _first_line(error: BaseException) -> str:
    """Return the first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else "no message"
