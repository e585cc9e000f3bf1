"""The plain engine: one client after the other, one step after the other. Slow, simple, the reference for the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.engine.base import Client, RoundKey, RoundResult, collect, draw_batches, in_device_order
from trainer.methods.base import Method, State


class LoopEngine:
    """Runs every client's steps in a Python loop."""

    def run_round(self, method: Method, server: State, clients: Sequence[Client], key: RoundKey) -> RoundResult:
        """Return what the clients send up after the method's phases."""
        ordered = in_device_order(clients)
        states, losses = [], []
        for client in ordered:
            state, client_losses = _train(method, method.downlink(server, client.device), client, key)
            states.append(state)
            losses.extend(client_losses)
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}  # (M, *shape)
        return collect(ordered, stacked, losses)


def _train(method: Method, state: State, client: Client, key: RoundKey) -> tuple[State, list[Tensor]]:
    """Return one client's state after all phases, and its losses."""
    context = method.context()
    dtype = next(iter(state.values())).dtype
    losses = []
    for phase in method.phases():
        batches = draw_batches(phase, client, key, dtype)
        for step in range(phase.count):
            state, metrics = phase.step(state, {name: tensor[step] for name, tensor in batches.items()}, context)
            losses.append(metrics["loss"])
    return state, losses
