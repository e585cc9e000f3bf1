"""The batched engine: one step of many clients at once, as one traced tensor program.

States and batches of the clients are stacked, ``torch.func.vmap`` turns the step of one client into the step of all,
and the result is traced once for each shape. Clients run in chunks, because stacked states that outgrow the
processor's cache cost more than they save.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trainer.engine.base import Client, RoundKey, RoundResult, collect, draw_batches, in_device_order
from trainer.methods.base import Batch, Context, LocalStep, Method, Repeat, State
from trainer.tracing import TraceKey, trace_cohort_step, trace_key


class CohortEngine:
    """Runs clients together.

    Args:
        chunk_size: Clients that are stacked at a time.
    """

    def __init__(self, chunk_size: int = 10) -> None:
        self.chunk_size = chunk_size
        self._traced: dict[tuple[LocalStep, TraceKey], LocalStep] = {}

    def run_round(self, method: Method, server: State, clients: Sequence[Client], key: RoundKey) -> RoundResult:
        """Return what the clients send up after the method's phases."""
        ordered = in_device_order(clients)
        states: list[State] = []
        losses: list[Tensor] = []
        for start in range(0, len(ordered), self.chunk_size):
            state, chunk_losses = self._train_chunk(method, server, ordered[start : start + self.chunk_size], key)
            states.append(state)
            losses.extend(chunk_losses)
        stacked = {name: torch.cat([state[name] for state in states]) for name in states[0]}  # (M, *shape)
        return collect(ordered, stacked, losses)

    def _train_chunk(self, method: Method, server: State, clients: Sequence[Client], key: RoundKey) -> tuple[State, list[Tensor]]:
        """Return the stacked states (M, *shape) of a chunk of clients after all phases, and the losses."""
        starts = [method.downlink(server, client.device) for client in clients]
        state = {name: torch.stack([start[name] for start in starts]) for name in starts[0]}  # (M, *shape)
        dtype = next(iter(state.values())).dtype
        losses: list[Tensor] = []
        for phase in method.phases():
            batches = _stack([draw_batches(phase, client, key, dtype) for client in clients])
            state, phase_losses = self._run_phase(phase, state, batches, method.context())
            losses.extend(phase_losses)
        return state, losses

    def _run_phase(self, phase: Repeat, state: State, batches: Batch, context: Context) -> tuple[State, list[Tensor]]:
        """Return the stacked states after all steps of a phase, and the losses (M,) of each step."""
        losses = []
        for step in range(phase.count):
            batch = {name: tensor[step] for name, tensor in batches.items()}
            state, metrics = self._traced_step(phase.step, state, batch, context)(state, batch, context)
            losses.append(metrics["loss"])
        return state, losses

    def _traced_step(self, step: LocalStep, state: State, batch: Batch, context: Context) -> LocalStep:
        """Return the traced step for these shapes, made at the first call."""
        place = (step, trace_key(state, batch))
        if place not in self._traced:
            self._traced[place] = trace_cohort_step(step, state, batch, context)
        return self._traced[place]


def _stack(batches: Sequence[Batch]) -> Batch:
    """Return the clients' batches with steps first and clients second: (S, M, B, *shape), ..."""
    return {name: torch.stack([batch[name] for batch in batches], dim=1) for name in batches[0]}
