"""Dropout whose random numbers are inputs, because a training step draws nothing itself.

A model with dropout has a method ``dropout_inputs()`` and takes ``forward(x, masks)``. A mask holds a uniformly random
byte for each activation: an element is kept when its byte is below ``round(256 * keep)``, and the kept ones are scaled so
that the expectation stays. Without masks nothing is dropped.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from protocol.errors import InputError

BYTES = 256


class DropoutInput(NamedTuple):
    """Random bytes that a model takes: their name, their shape for one sample, the share of activations that stay."""

    name: str
    shape: tuple[int, ...]
    keep: float


@runtime_checkable
class WithDropout(Protocol):
    """A model that can drop activations."""

    def dropout_inputs(self) -> tuple[DropoutInput, ...]:
        """Return the random bytes that ``forward`` takes as ``masks``, in the order of use."""


def dropout_inputs(model: nn.Module) -> tuple[DropoutInput, ...]:
    """Return the random bytes that a model's ``forward`` takes as ``masks``; none for a model without dropout."""
    return model.dropout_inputs() if isinstance(model, WithDropout) else ()


def drop(x: Tensor, masks: dict[str, Tensor] | None, dropped: DropoutInput) -> Tensor:
    """Return x with elements dropped, or x as it is without masks.

    Args:
        x: Activations, (B, *shape).
        masks: Uniformly random bytes by name, each (B, *shape) uint8; None in evaluation.
        dropped: Which of the masks, and the share that stays.

    Raises:
        InputError: The share that stays is not in 0..1, or too small for a byte.
    """
    threshold = round(BYTES * dropped.keep)
    if not 1 <= threshold <= BYTES:
        raise InputError(f"{dropped.name} keeps a wrong share", expected="more than 0, at most 1", got=dropped.keep)
    if masks is None or threshold == BYTES:  # 256 is no byte: the comparison would wrap around
        return x
    kept = (masks[dropped.name] < threshold).to(x.dtype)  # (B, *shape)
    return x * (kept * (BYTES / threshold))  # (B, *shape)
