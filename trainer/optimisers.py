"""SGD with momentum, and Adam, as pure functions: their slots are part of a step's state, so they batch and export like weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad_and_value

from trainer.methods.base import Batch, Context, LocalStep, Metrics, State
from trainer.methods.checks import check_between
from trainer.methods.names import part_of, prefixed
from trainer.optimisation import clipped_gradients

WEIGHT = "weight."
MOMENTUM, FIRST, SECOND, STEP_COUNT = "momentum.", "first_moment.", "second_moment.", "step_count"


class Optimiser(Protocol):
    """A rule that turns gradients into the next weights."""

    def slots(self, weights: State) -> State:
        """Return what the rule remembers, before the first step."""

    def update(self, weights: State, gradients: State, slots: State, rate: Tensor) -> tuple[State, State]:
        """Return the next weights and the next slots.

        Args:
            weights: Trained tensors by name.
            gradients: Theirs, by the same names.
            slots: What the rule remembers.
            rate: Learning rate, a scalar.
        """


@dataclass(frozen=True)
class Sgd:
    """Gradient descent with heavy-ball momentum; torch's ``SGD`` without dampening.

    Attributes:
        momentum: Share of the last change that is kept; 0 for none.
        weight_decay: Strength of the pull of weights towards zero.
    """

    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        check_between("momentum", self.momentum, 0.0, 1.0)
        check_between("weight_decay", self.weight_decay, 0.0, 10.0)

    def slots(self, weights: State) -> State:
        """Return zeros: the changes so far."""
        return {MOMENTUM + name: torch.zeros_like(tensor) for name, tensor in weights.items()} if self.momentum else {}

    def update(self, weights: State, gradients: State, slots: State, rate: Tensor) -> tuple[State, State]:
        """Return the next weights and changes."""
        moves = _decayed(weights, gradients, self.weight_decay)
        if self.momentum:
            moves = {name: self.momentum * slots[MOMENTUM + name] + move for name, move in moves.items()}
        after = {name: tensor - rate * moves[name] for name, tensor in weights.items()}
        return after, prefixed(MOMENTUM, moves) if self.momentum else {}


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction; with weight decay as in torch's ``Adam`` (Kingma and Ba, arXiv 1412.6980, algorithm 1).

    Attributes:
        first_decay: Decay of the mean of gradients.
        second_decay: Decay of the mean of their squares.
        epsilon: Keeps the quotient finite.
        weight_decay: Strength of the pull of weights towards zero.
    """

    first_decay: float = 0.9
    second_decay: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        for name in ("first_decay", "second_decay"):
            check_between(name, getattr(self, name), 0.0, 1.0 - 1e-9)
        check_between("epsilon", self.epsilon, 1e-30, 1.0)
        check_between("weight_decay", self.weight_decay, 0.0, 10.0)

    def slots(self, weights: State) -> State:
        """Return both moments, zero, and the count of steps, float32 (1,): a scalar would have no batch of clients."""
        zeros = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        return prefixed(FIRST, zeros) | prefixed(SECOND, zeros) | {STEP_COUNT: next(iter(zeros.values())).new_zeros(1)}

    def update(self, weights: State, gradients: State, slots: State, rate: Tensor) -> tuple[State, State]:
        """Return the next weights and moments."""
        count = slots[STEP_COUNT] + 1.0  # (1,)
        moves = _decayed(weights, gradients, self.weight_decay)
        first = {name: self.first_decay * slots[FIRST + name] + (1 - self.first_decay) * move for name, move in moves.items()}
        second = {name: self.second_decay * slots[SECOND + name] + (1 - self.second_decay) * move.square() for name, move in moves.items()}
        size = rate / (1 - self.first_decay**count)  # (1,)
        scale = torch.rsqrt(1 - self.second_decay**count)  # (1,)
        after = {name: tensor - size * first[name] / (second[name].sqrt() * scale + self.epsilon) for name, tensor in weights.items()}
        return after, prefixed(FIRST, first) | prefixed(SECOND, second) | {STEP_COUNT: count}


def initial_state(optimiser: Optimiser, weights: Mapping[str, Tensor]) -> State:
    """Return the state of ``training_step`` before the first step: weights and slots."""
    trained = {name: tensor.detach() for name, tensor in weights.items()}
    return prefixed(WEIGHT, trained) | optimiser.slots(trained)


@dataclass(frozen=True, eq=False)
class Descent:
    """How one step follows a gradient.

    Attributes:
        optimiser: The rule.
        rate: Learning rate, a scalar.
        clip_norm: Maximum joint norm of the gradients; 0 for no clipping.
    """

    optimiser: Optimiser
    rate: Tensor
    clip_norm: float

    def step(self, loss: Callable[[State], Tensor], weights: State, slots: State) -> tuple[State, State, Tensor]:
        """Return the next weights and slots, and the loss before the step, a scalar."""
        gradients, value = grad_and_value(loss)(weights)
        after, kept = self.optimiser.update(weights, clipped_gradients(gradients, self.clip_norm), slots, self.rate)
        return after, kept, value


def training_step(loss: Callable[[State, Batch], Tensor], optimiser: Optimiser, clip_norm: float = 0.0) -> LocalStep:
    """Return a local step that follows the gradient of a loss by an optimiser's rule.

    Args:
        loss: (weights, batch) -> scalar; what is not trained is a constant of it.
        optimiser: The rule. The state holds ``weight.NAME`` and the rule's slots; the context ``learning_rate``, a scalar.
        clip_norm: Maximum joint norm of the gradients; 0 for no clipping.
    """

    def step(state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        weights = part_of(state, WEIGHT)
        slots = {name: tensor for name, tensor in state.items() if not name.startswith(WEIGHT)}
        rule = Descent(optimiser, context["learning_rate"], clip_norm)
        after, kept, value = rule.step(lambda trained: loss(trained, batch), weights, slots)
        return prefixed(WEIGHT, after) | kept, {"loss": value}

    return step


def _decayed(weights: State, gradients: State, strength: float) -> State:
    """Return the gradients plus the pull of weights towards zero."""
    return {name: each + strength * weights[name] for name, each in gradients.items()} if strength else gradients
