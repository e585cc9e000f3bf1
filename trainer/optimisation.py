"""Pieces that local steps are made of: gradients, clipping, plain SGD. All pure, so that they batch and export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value

from trainer.methods.base import Context, Metrics, State

FREQUENCY_FLOOR = 1e-4  # a class that a batch lacks: small enough that the batch hardly moves its scores


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy, a scalar, of logits (B, C) and labels (B,), weighted by ``weights`` (B,) if given.

    Written as log-softmax and gather: the exporter translates the fused operator's gradient wrongly.
    """
    chosen = torch.log_softmax(logits, dim=1).gather(1, labels.unsqueeze(1)).squeeze(1)  # (B,)
    return -mean_of_samples(chosen, weights)


def mean_of_samples(values: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean of one value a sample, (B,), weighted by ``weights`` (B,) if given: padding has weight 0."""
    return values.mean() if weights is None else (values * weights).sum() / weights.sum()


def log_frequencies(labels: Tensor, like: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the logarithms of the class frequencies of labels (B,), smoothed, as (C,) in the dtype of ``like`` (B, C).

    Samples count by ``weights`` (B,) if given: padding has weight 0.
    """
    classes = torch.arange(like.shape[1], device=labels.device)
    held = (labels.unsqueeze(1) == classes).to(like.dtype)  # (B, C)
    frequencies = held.mean(dim=0) if weights is None else (held * weights.unsqueeze(1)).sum(dim=0) / weights.sum()  # (C,)
    return torch.log(frequencies + FREQUENCY_FLOOR)


def clip_factor(gradients: State, maximum: float) -> Tensor:
    """Return the scalar that brings the gradients' joint Euclidean norm down to ``maximum``; 1 if it is below."""
    norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients.values()])
    factor: Tensor = (maximum / (torch.linalg.vector_norm(norms) + 1e-12)).clamp(max=1.0)
    return factor


def clipped_gradients(gradients: State, maximum: float) -> State:
    """Return gradients whose joint Euclidean norm is at most ``maximum``; 0 for no limit."""
    if not maximum:
        return gradients
    factor = clip_factor(gradients, maximum)
    return {name: factor * gradient for name, gradient in gradients.items()}


def descend(state: State, gradients: State, rate: Tensor, clip_norm: float) -> State:
    """Return the state one step down the gradients, their joint norm clipped to ``clip_norm``; 0 for no clipping."""
    step = rate * clip_factor(gradients, clip_norm) if clip_norm else rate  # one scalar, so that each weight is touched once
    return {name: tensor - step * gradients[name] for name, tensor in state.items()}


def sgd_step(loss: Callable[[State], Tensor], state: State, rate: Tensor, clip_norm: float) -> tuple[State, Metrics]:
    """Return the state after one clipped step of gradient descent, and the loss before it.

    Args:
        loss: Scalar loss of a state.
        state: Parameters, all of them trained.
        rate: Learning rate, a scalar tensor.
        clip_norm: Maximum joint norm of the gradients; 0 for no clipping.
    """
    gradients, value = grad_and_value(loss)(state)
    return descend(state, gradients, rate, clip_norm), {"loss": value}


@dataclass(frozen=True, eq=False)
class Proximity:
    """A quadratic pull towards an anchor: strength / 2 * ||state - anchor||^2."""

    strength: float
    anchor: Context


def proximal_step(
    loss: Callable[[State], Tensor], state: State, proximity: Proximity, rate: Tensor, clip_norm: float
) -> tuple[State, Metrics]:
    """Return the state after one clipped step on loss plus pull, and the loss before it without the pull.

    The loss is reported alone, so that it compares with that of methods without a pull.
    """
    gradients, value = grad_and_value(loss)(state)
    # anchor - state, not state - anchor: the state's one subtraction is then the descent, which can be written in place
    pulled = {name: each - proximity.strength * (proximity.anchor[name] - state[name]) for name, each in gradients.items()}
    return descend(state, pulled, rate, clip_norm), {"loss": value}
