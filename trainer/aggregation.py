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
    weights = weights / weights.sum()
    mean = {}
    for name, stacked in updates.state.items():
        total = torch.zeros(stacked.shape[1:], dtype=torch.float64, device=stacked.device)
        for weight, tensor in zip(weights, stacked, strict=True):
            total += weight * tensor
        mean[name] = total.to(stacked.dtype)
    return mean
