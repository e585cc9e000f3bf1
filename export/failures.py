"""Say in one sentence why the exporter failed: control flow on values, an axis fixed by code, or an operation."""

from __future__ import annotations

from collections.abc import Iterator

from export.advice import cannot_export
from protocol.errors import InputError

CONTROL_FLOW = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")
CONSTANT_AXES = ("ConstraintViolationError", "Constraints violated")


def export_failure(module: str, error: BaseException) -> InputError:
    """Return the error for a failed export.

    Args:
        module: What was exported ("the module for classify").
        error: What the exporter raised.
    """
    what, chain = f"{module} cannot be exported", list(_causes(error))
    text = " ".join(f"{type(each).__name__} {each}" for each in chain)
    if any(kind in text for kind in CONTROL_FLOW):
        hint = "Python cannot branch on, or size tensors by, what a tensor holds: use torch.where"
        return InputError(what, expected="the same operations for all values", got="control flow that depends on values", hint=hint)
    if any(mark in text for mark in CONSTANT_AXES):
        hint = "use x.shape[0] or -1 instead of a number for the size of a named axis"
        return InputError(what, expected="named axes of any size", got="code that fixes the size of an axis", hint=hint)
    return cannot_export(module, error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and what caused it, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__
