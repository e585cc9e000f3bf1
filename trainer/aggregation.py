"""How updates become the next server state."""

from __future__ import annotations

import torch

from trainer.methods.base import State, Updates


def weighted_mean(updates: Updates) -> State:
    """Return the mean of the clients' states weighted by their sample counts (FedAvg, McMahan et al., 2017).

    Sums run in float64 over the devices in ascending order of their ids, so the result does not depend on who was
    first.
    """
    weights = updates.sample_counts.to(torch.float64)  # (M,)
    shares = (weights / weights.sum()).tolist()
    totals = {name: torch.zeros(tensor.shape[1:], dtype=torch.float64, device=tensor.device) for name, tensor in updates.chunks[0].items()}
    place = 0
    for chunk in updates.chunks:
        size = len(next(iter(chunk.values())))
        for name, stacked in chunk.items():
            for share, tensor in zip(shares[place : place + size], stacked, strict=True):
                totals[name].add_(tensor, alpha=share)
        place += size
    return {name: total.to(updates.chunks[0][name].dtype) for name, total in totals.items()}
