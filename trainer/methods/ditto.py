"""Ditto: FedAvg for everybody, and beside it a network of its own for each participant, kept close to the global one.

Li et al., "Ditto: fair and robust federated learning through personalization", ICML 2021, Algorithm 1: personal weights
take the steps v <- v - eta * (grad F_k(v) + lambda * (v - w)), with w the weights that the round began with. The global
network does not know of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.methods.base import Batch, Context, DeviceView, Metrics, Phase, Predictor, State, Task
from trainer.methods.checks import check_between
from trainer.methods.classifier_method import LocalTraining
from trainer.methods.fedavg import FedAvgMethod
from trainer.methods.names import GLOBAL, PERSONAL, part_of, prefixed, without
from trainer.methods.parts import Part
from trainer.optimisation import Proximity, proximal_step


@dataclass(frozen=True)
class Ditto(LocalTraining):
    """Settings of Ditto: those of local training, and the pull.

    Attributes:
        pull: Strength lambda with which personal weights are pulled to the global ones.
    """

    name: ClassVar[str] = "ditto"

    pull: float = 0.1

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_between("pull", self.pull, 0.0, 1e6)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> DittoMethod:
        """Return the method for this task."""
        return DittoMethod(self, task, dtype)


class DittoMethod(FedAvgMethod):
    """Ditto bound to a task."""

    def __init__(self, settings: Ditto, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings

    def private_state(self, server: State, device: str) -> State:
        """Return personal weights that begin as the global ones."""
        return prefixed(PERSONAL, server)

    def context(self, server: State) -> Context:
        """Return the learning rate and the weights that the round began with."""
        return {**super().context(server), **prefixed(GLOBAL, server)}

    def phases(self) -> tuple[Phase, ...]:
        """Return the one phase: both networks take their steps on the same batches."""
        return (self.train_phase(self.both_steps),)

    def both_steps(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step of either network, and the global one's loss."""
        after, metrics = self.step(without(state, PERSONAL), batch, context)
        proximity = Proximity(self.settings.pull, part_of(context, GLOBAL))
        personal, rate = part_of(state, PERSONAL), context["learning_rate"]
        moved, _ = proximal_step(lambda weights: self.loss(weights, batch), personal, proximity, rate, self.training.clip_norm)
        return after | prefixed(PERSONAL, moved), metrics

    def upload(self, end: State, context: Context) -> State:
        """Return the global network's weights."""
        return without(end, PERSONAL)

    def keep(self, end: State, context: Context) -> State:
        """Return the personal weights."""
        return prefixed(PERSONAL, part_of(end, PERSONAL))

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the personal network; the global one where a device never took part."""
        return self.predictor_of(part_of(view.private, PERSONAL) or server)

    def trained_part(self) -> Part | None:
        """Return the personal network."""
        return self.trained_classifier(PERSONAL)
