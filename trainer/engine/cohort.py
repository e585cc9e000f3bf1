"""The batched engine: one step of many clients at once, as one traced tensor program.

States and batches of the clients are stacked, ``torch.func.vmap`` turns the step of one client into the step of all,
and the result is traced once for each shape. Clients run in chunks, because stacked states that outgrow the
processor's cache cost more than they save. Clients whose states differ in shape are never put together; results stand in
device order all the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from trainer.engine.base import Client, RoundCollector, RoundKey, RoundResult, draw_batches, floating_dtype, in_device_order, start_state
from trainer.engine.compilation import Compiler
from trainer.engine.programs import StepPrograms
from trainer.methods.base import Batch, Context, Method, Once, Repeat, State
from trainer.tracing import ACTIVE

CPU_CHUNK = 10
GPU_CHUNK_VALUES = 1_000_000_000  # weights of a chunk on a GPU: activations and gradients take several times as much
CPU_CHUNK_VALUES = 20_000_000  # weights of a chunk: beyond it, fewer clients


class CohortEngine:
    """Runs clients together.

    Args:
        chunk_size: Clients that are stacked at a time; None for 10 on a CPU, fewer for large states, and the whole cohort on
            a GPU.
        compiler: Compiles the traces, or None to run them as they are.
    """

    def __init__(self, chunk_size: int | None = None, compiler: Compiler | None = None) -> None:
        self.chunk_size = chunk_size
        self._programs = StepPrograms(compiler=compiler)

    def run_round(
        self, method: Method, server: State, clients: Sequence[Client], key: RoundKey, private: Mapping[str, State] | None = None
    ) -> RoundResult:
        """Return what the clients send up and keep after the method's phases."""
        collector = RoundCollector()
        context = method.context(server)
        for chunk, starts in self._chunks(method, server, clients, private or {}):
            state, losses, steps = self._train_chunk(method, _stack(starts), context, chunk, key)
            collector.add(method, chunk, state, context, losses, steps)
        return collector.result()

    def _chunks(
        self, method: Method, server: State, clients: Sequence[Client], private: Mapping[str, State]
    ) -> Iterator[tuple[list[Client], list[State]]]:
        """Yield chunks of clients whose states have the same names and shapes, with their states."""
        groups: dict[tuple[tuple[str, torch.Size, torch.dtype], ...], list[tuple[Client, State]]] = {}
        for client in in_device_order(clients):
            state = start_state(method, server, client.device, private)
            kind = tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(state.items()))
            groups.setdefault(kind, []).append((client, state))
        for group in groups.values():
            size = self.chunk_size or _suitable_chunk(group[0][1], len(group))
            for start in range(0, len(group), size):
                chunk = group[start : start + size]
                yield [client for client, _ in chunk], [state for _, state in chunk]

    def _train_chunk(
        self, method: Method, state: State, context: Context, clients: Sequence[Client], key: RoundKey
    ) -> tuple[State, Tensor, int]:
        """Return the stacked states (m, *shape) of a chunk after all phases, mean losses (m,), and steps taken."""
        total, taken = torch.zeros(len(clients), dtype=torch.float64), torch.zeros(len(clients))
        for phase in method.phases():
            if isinstance(phase, Once):
                state = _run_once(phase, state, context, clients)
                continue
            counts = torch.tensor([phase.steps(len(client.labels)) for client in clients])  # (m,)
            if not counts.any():
                continue
            batches = _stack_batches([draw_batches(phase, client, key, floating_dtype(state)) for client in clients], counts)
            state, losses = self._run_phase(phase, state, batches, context, int(counts.max()))
            total += losses.cpu()
            taken += counts
        return state, total / taken.clamp(min=1), int(taken.sum())

    def _run_phase(self, phase: Repeat, state: State, batches: Batch, context: Context, steps: int) -> tuple[State, Tensor]:
        """Return the stacked states after all steps of a phase, and each client's sum of losses, (m,)."""
        losses = []
        for step in range(steps):
            batch = {name: tensor[step] for name, tensor in batches.items()}
            state, metrics = self._programs.cohort(phase.step, state, batch, context)(state, batch, context)
            losses.append(metrics["loss"])
        return state, torch.stack(losses).sum(dim=0, dtype=torch.float64)


def _suitable_chunk(state: State, clients: int) -> int:
    """Return how many clients run at a time."""
    weights = sum(tensor.numel() for tensor in state.values())
    if next(iter(state.values())).is_cuda:
        return max(1, min(clients, GPU_CHUNK_VALUES // max(1, weights)))
    return max(1, min(CPU_CHUNK, CPU_CHUNK_VALUES // max(1, weights)))


def _stack(states: Sequence[State]) -> State:
    """Return the clients' states stacked, (m, *shape), in memory of their own."""
    first = states[0]
    if all(state[name] is tensor for state in states for name, tensor in first.items()):  # the same downlink for all
        return {
            name: tensor.expand(len(states), *tensor.shape).clone(memory_format=torch.contiguous_format) for name, tensor in first.items()
        }
    return {name: torch.stack([state[name] for state in states]) for name in first}


def _stack_batches(batches: Sequence[Batch], counts: Tensor) -> Batch:
    """Return the clients' batches with steps first and clients second: (S, m, B, *shape), ...

    Where clients take different numbers of steps, the shorter ones are repeated from their beginning and ``active`` (S, m)
    tells which steps count.
    """
    steps = int(counts.max())
    names = {name for batch in batches for name in batch}
    stacked: dict[str, Tensor] = {}
    for name in sorted(names):
        own = [batch[name] if name in batch else torch.ones(batch["labels"].shape) for batch in batches]  # only weights may lack
        like = next(batch[name] for batch in batches if name in batch)
        stacked[name] = torch.stack([_lengthen(tensor.to(like), steps) for tensor in own], dim=1)
    if int(counts.min()) < steps:
        stacked[ACTIVE] = (torch.arange(steps).unsqueeze(1) < counts).to(stacked["labels"].device)  # (S, m)
    return stacked


def _lengthen(tensor: Tensor, steps: int) -> Tensor:
    """Return a tensor (S', *shape) as (S, *shape), repeated from its beginning."""
    return tensor if len(tensor) == steps else tensor[torch.arange(steps) % len(tensor)]


def _run_once(phase: Once, state: State, context: Context, clients: Sequence[Client]) -> State:
    """Return the stacked states after a phase that runs once for each client."""
    rows = [{name: tensor[place] for name, tensor in state.items()} for place in range(len(clients))]
    pairs = zip(rows, clients, strict=True)
    return _stack([phase.function(row, client.samples, client.labels, context) for row, client in pairs])
