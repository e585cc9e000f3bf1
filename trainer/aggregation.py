"""How updates become the next server state.

Sums run in float64 over the devices in ascending order of their ids, so a result does not depend on who was first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import torch

from trainer.methods.base import State, Updates


def weighted_mean(updates: Updates, names: Collection[str] | None = None) -> State:
    """Return the mean of the clients' states weighted by their sample counts (FedAvg, McMahan et al., 2017).

    Args:
        updates: What the clients sent.
        names: The tensors that are wanted; all when None.
    """
    weights = updates.sample_counts.to(torch.float64)  # (M,)
    shares: list[float] = (weights / weights.sum()).tolist()
    first = updates.chunks[0]
    wanted = first.keys() if names is None else first.keys() & names
    totals = weighted_sum(({name: state[name] for name in wanted} for state in client_states(updates)), shares)
    return {name: total.to(first[name].dtype) for name, total in totals.items()}


def weighted_sum(states: Iterable[State], shares: Sequence[float]) -> State:
    """Return the sum of states times shares, in float64."""
    totals: State = {}
    for share, state in zip(shares, states, strict=True):
        for name, tensor in state.items():
            if name not in totals:
                totals[name] = torch.zeros(tensor.shape, dtype=torch.float64, device=tensor.device)
            totals[name].add_(tensor, alpha=share)
    return totals


def weighted_mean_by_slot(updates: Updates, slots: str, before: State) -> State:
    """Return for each of S slots the mean of what the clients sent for it, weighted by their sample counts.

    Args:
        updates: Tensors (K, *shape) of each client, under the names of ``before``.
        slots: Name of the update that tells which slots a client's K rows belong to, (K,) int64.
        before: The slots before the round, (S, *shape): a slot for which nobody sent anything stays as it is.
    """
    totals = {name: torch.zeros(tensor.shape, dtype=torch.float64, device=tensor.device) for name, tensor in before.items()}
    weights = [0.0] * len(next(iter(before.values())))
    for count, state in zip(updates.sample_counts.tolist(), client_states(updates), strict=True):
        for place, slot in enumerate(state[slots].tolist()):
            weights[slot] += count
            for name, total in totals.items():
                total[slot].add_(state[name][place], alpha=count)
    after = {name: tensor.clone() for name, tensor in before.items()}
    for slot, weight in enumerate(weights):
        for name, tensor in after.items():
            if weight:
                tensor[slot] = totals[name][slot] / weight
    return after


def client_states(updates: Updates) -> Iterator[State]:
    """Yield each client's own tensors (*shape), in the order of ``updates.devices``."""
    for chunk in updates.chunks:
        for place in range(len(next(iter(chunk.values()), ()))):
            yield {name: tensor[place] for name, tensor in chunk.items()}
