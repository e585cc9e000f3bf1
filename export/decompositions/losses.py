"""Negative log-likelihood as a gather.

The exporter's own translation returns a placeholder for the total weight, so the gradient of a mean comes out too large
by the batch size, without a word. Both directions are replaced: replacing the backward alone keeps the fault.
"""

from __future__ import annotations

import torch
from torch import Tensor

NONE, MEAN = 0, 1  # ATen's numbers for the reductions


def nll_loss_forward(scores: Tensor, labels: Tensor, weight: Tensor | None, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return the loss and the total weight, a scalar, of log-probabilities (B, C) and labels (B,)."""
    weights, places = _sample_weights(scores, labels, weight, ignore_index)  # (B,), (B, 1)
    losses = -scores.gather(1, places).squeeze(1) * weights  # (B,)
    total = weights.sum()
    if reduction == NONE:
        return losses, total.new_zeros(())
    return (losses.sum() / total if reduction == MEAN else losses.sum()), total


def nll_loss_backward(
    gradient: Tensor, scores: Tensor, labels: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, total_weight: Tensor
) -> Tensor:
    """Return the gradient of the log-probabilities, (B, C)."""
    weights, places = _sample_weights(scores, labels, weight, ignore_index)  # (B,), (B, 1)
    each = -gradient * weights  # (B,)
    if reduction == MEAN:
        each = each / total_weight
    chosen = torch.arange(scores.shape[1], device=scores.device) == places  # (B, C)
    return chosen.to(scores.dtype) * each.unsqueeze(1)


def _sample_weights(scores: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Return each sample's weight (B,), 0 for an ignored label, and its label as a place (B, 1)."""
    counts = labels != ignore_index  # (B,)
    places = torch.where(counts, labels, 0)  # (B,)
    weights = counts.to(scores.dtype)
    if weight is not None:
        weights = weights * weight.index_select(0, places)
    return weights, places.unsqueeze(1)
