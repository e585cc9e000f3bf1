"""What methods share whose devices tell the mean of an output for each class, and nothing else: features or logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.aggregation import client_states
from trainer.methods.base import Context, Once, Phase, State, Task, Updates
from trainer.methods.checks import check_at_least, check_between
from trainer.methods.unlike_method import UnlikeMethod, UnlikeTraining

MEANS, COUNTS = "class_means", "class_counts"
ROWS_AT_A_TIME = 1024


@dataclass(frozen=True)
class ClassMeansTraining(UnlikeTraining):
    """Settings of methods that exchange class means.

    Attributes:
        pull: Weight of the term that draws local outputs to the global class means.
        minimum_count: Samples of a class that a device must hold to tell its mean.
    """

    pull: float = 1.0
    minimum_count: int = 1

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_between("pull", self.pull, 0.0, 1e6)
        check_at_least("minimum_count", self.minimum_count, 1)


class ClassMeansMethod(UnlikeMethod):
    """A method that exchanges class means of some output."""

    def __init__(self, settings: ClassMeansTraining, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.means_settings = settings

    def told_size(self) -> int:
        """Return the length of a class mean: the number of features, unless a subclass tells another output."""
        return self.training.feature_size

    def told(self, state: State, samples: Tensor) -> Tensor:
        """Return what is averaged: features (B, D) of raw samples (B, *shape)."""
        return self.local_outputs(state, samples)[0]

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return what each group begins with, and class means that nobody has told yet."""
        classes = len(self.task.classes)
        empty = {MEANS: torch.zeros(classes, self.told_size(), dtype=self.dtype), COUNTS: torch.zeros(classes, dtype=self.dtype)}
        return super().initial_state(seed, enrolled) | empty

    def context(self, server: State) -> Context:
        """Return the learning rate, the global class means (C, D) and how many samples they rest on, (C,)."""
        return {**super().context(server), MEANS: server[MEANS], COUNTS: server[COUNTS]}

    def phases(self) -> tuple[Phase, ...]:
        """Return local training, then the class means of the network that came of it."""
        return (self.train_phase(), Once("class_means", self.tell))

    def tell(self, state: State, samples: Tensor, labels: Tensor, context: Context) -> State:
        """Return the state with class means (C, D) and counts (C,) of a device's samples."""
        pieces = [self.told(state, samples[start : start + ROWS_AT_A_TIME]) for start in range(0, len(samples), ROWS_AT_A_TIME)]
        outputs = torch.cat(pieces)  # (N, D)
        held = torch.nn.functional.one_hot(labels, len(self.task.classes)).to(outputs.dtype)  # (N, C)
        counts = held.sum(dim=0)  # (C,)
        counts = torch.where(counts >= self.means_settings.minimum_count, counts, torch.zeros_like(counts))  # (C,)
        sums = held.T @ outputs * (counts > 0).unsqueeze(1)  # (C, D)
        return state | {MEANS: sums / counts.clamp(min=1).unsqueeze(1), COUNTS: counts}

    def upload(self, end: State, context: Context) -> State:
        """Return class means (M, C, D) and counts (M, C)."""
        return {MEANS: end[MEANS], COUNTS: end[COUNTS]}

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return for each class the mean over all samples of all devices; a class that nobody told keeps its mean."""
        return server | weighted_class_means(server, updates)

    def pull_to_means(self, outputs: Tensor, labels: Tensor, context: Context, weights: Tensor | None) -> Tensor:
        """Return the mean squared distance, a scalar, of outputs (B, D) to the global means of their classes, where there are any."""
        known = (context[COUNTS] > 0).to(outputs.dtype).index_select(0, labels)  # (B,)
        distance = (outputs - context[MEANS].index_select(0, labels)).square().mean(dim=1) * known  # (B,)
        return distance.mean() if weights is None else (distance * weights).sum() / weights.sum()


def weighted_class_means(server: State, updates: Updates) -> State:
    """Return the mean of each class, weighted by what each device holds of it, in float64."""
    before, counts = server[MEANS], torch.zeros(len(server[COUNTS]), dtype=torch.float64, device=server[COUNTS].device)
    sums = torch.zeros(before.shape, dtype=torch.float64, device=before.device)  # (C, D)
    for state in client_states(updates):
        own = state[COUNTS].double()  # (C,)
        counts, sums = counts + own, sums + own.unsqueeze(1) * state[MEANS].double()
    told = counts > 0  # (C,)
    means = torch.where(told.unsqueeze(1), sums / counts.clamp(min=1).unsqueeze(1), before.double())  # (C, D)
    return {MEANS: means.to(before.dtype), COUNTS: torch.where(told, counts, server[COUNTS].double()).to(before.dtype)}
