"""The factors of a round's clients as pairs, and pairs as tensors of a state.

What is done with pairs stands in ``trainer.factors``.
"""

from __future__ import annotations

import torch

from trainer.aggregation import client_states
from trainer.factors.pair import Factors
from trainer.lora import FACTOR_A, FACTOR_B
from trainer.methods.base import State, Updates


def pairs_of(updates: Updates, layer: str) -> list[Factors]:
    """Return every client's factors of a layer in float64, in device order."""
    a, b = f"{layer}.{FACTOR_A}", f"{layer}.{FACTOR_B}"
    return [Factors(state[a], state[b]).to(torch.float64) for state in client_states(updates)]


def named(layer: str, pair: Factors, dtype: torch.dtype) -> State:
    """Return a pair as two tensors by name."""
    return {f"{layer}.{FACTOR_B}": pair.b.to(dtype), f"{layer}.{FACTOR_A}": pair.a.to(dtype)}
