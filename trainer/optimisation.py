"""Pieces that local steps are made of: gradients, clipping, plain SGD. All pure, so that they batch and export."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad_and_value

from trainer.methods.base import Metrics, State


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy, a scalar, of logits (B, C) and labels (B,).

    Written as log-softmax and gather: the exporter translates the fused operator's gradient wrongly.
    """
    chosen = torch.log_softmax(logits, dim=1).gather(1, labels.unsqueeze(1))  # (B, 1)
    return -chosen.mean()


def clip_by_global_norm(gradients: State, maximum: float) -> State:
    """Return the gradients scaled down together so that their joint Euclidean norm is at most ``maximum``."""
    squared = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum()
    factor = (maximum / (squared.sqrt() + 1e-12)).clamp(max=1.0)
    return {name: gradient * factor for name, gradient in gradients.items()}


def sgd_step(loss: Callable[[State], Tensor], state: State, rate: Tensor, clip_norm: float) -> tuple[State, Metrics]:
    """Return the state after one clipped step of gradient descent, and the loss before it.

    Args:
        loss: Scalar loss of a state.
        state: Parameters, all of them trained.
        rate: Learning rate, a scalar tensor.
        clip_norm: Maximum joint norm of the gradients.
    """
    gradients, value = grad_and_value(loss)(state)
    clipped = clip_by_global_norm(gradients, clip_norm)
    return {name: tensor - rate * clipped[name] for name, tensor in state.items()}, {"loss": value}
