"""The plain engine: one client after the other, one step after the other. Simple, and the reference for the others.

Each step is traced once for its shapes and then runs without the dispatch of ``torch.func``; the arithmetic is that of
a hand-written loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer.engine.base import Client, RoundCollector, RoundKey, RoundResult, draw_batches, floating_dtype, in_device_order, start_state
from trainer.engine.programs import StepPrograms
from trainer.methods.base import Context, Method, Repeat, State


class LoopEngine:
    """Runs every client's steps in a Python loop.

    Args:
        traced: Whether steps run as traced programs; False runs the method's functions as they stand.
    """

    def __init__(self, *, traced: bool = True) -> None:
        self._programs = StepPrograms(traced=traced)

    def run_round(
        self, method: Method, server: State, clients: Sequence[Client], key: RoundKey, private: Mapping[str, State] | None = None
    ) -> RoundResult:
        """Return what the clients send up and keep after the method's phases."""
        collector = RoundCollector()
        context = method.context(server)
        for client in in_device_order(clients):
            start = start_state(method, server, client.device, private or {})
            own = {name: tensor.clone() for name, tensor in start.items()}  # programs may overwrite what they are given
            end, losses = self._train(method, own, context, client, key)
            stacked = {name: tensor.unsqueeze(0) for name, tensor in end.items()}  # (1, *shape)
            mean = torch.stack(losses).mean(dtype=torch.float64).reshape(1).cpu() if losses else torch.zeros(1, dtype=torch.float64)
            collector.add(method, [client], stacked, context, mean, len(losses))
        return collector.result()

    def _train(self, method: Method, state: State, context: Context, client: Client, key: RoundKey) -> tuple[State, list[Tensor]]:
        """Return one client's state after all phases, and the losses of its steps."""
        losses: list[Tensor] = []
        for phase in method.phases():
            if not isinstance(phase, Repeat):
                after = phase.function(state, client.samples, client.labels, context)
                state = {name: tensor.clone() for name, tensor in after.items()}  # it may hand out what is not the client's own
                continue
            batches = draw_batches(phase, client, key, floating_dtype(state))
            for step in range(phase.steps(len(client.labels))):
                batch = {name: tensor[step] for name, tensor in batches.items()}
                state, metrics = self._programs.single(phase.step, state, batch, context)(state, batch, context)
                losses.append(metrics["loss"])
        return state, losses
