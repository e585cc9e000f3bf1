"""Distillation: how far one classifier's softened scores are from another's (Hinton, Vinyals and Dean, arXiv 1503.02531)."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.optimisation import mean_of_samples


def softened_divergence(target: Tensor, logits: Tensor, temperature: float, weights: Tensor | None = None) -> Tensor:
    """Return T^2 * mean KL(softmax(target / T) || softmax(logits / T)), a scalar.

    T^2 keeps the size of the gradient the same for every temperature.

    Args:
        target: Logits that are to be met, (B, C).
        logits: Logits that are to meet them, (B, C).
        temperature: T, above 0.
        weights: Weights of the samples, (B,): 0 for padding.
    """
    wanted = torch.log_softmax(target / temperature, dim=1)  # (B, C)
    found = torch.log_softmax(logits / temperature, dim=1)  # (B, C)
    return temperature**2 * mean_of_samples((wanted.exp() * (wanted - found)).sum(dim=1), weights)
