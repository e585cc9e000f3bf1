"""Several trees in one flat state: each tree's names begin with a prefix of its own."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from trainer.methods.base import State

GLOBAL = "global."  # what every step of a round reads and no step changes
PERSONAL = "personal."  # what stays on a device


def prefixed(prefix: str, state: Mapping[str, Tensor]) -> State:
    """Return the tensors with a prefix before each name."""
    return {prefix + name: tensor for name, tensor in state.items()}


def part_of(state: Mapping[str, Tensor], prefix: str) -> State:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def without(state: Mapping[str, Tensor], *prefixes: str) -> State:
    """Return the tensors whose names begin with none of the prefixes."""
    return {name: tensor for name, tensor in state.items() if not name.startswith(prefixes)}
