"""LG-FedAvg: devices keep their extractors and share the head (Liang et al., "Think locally, act globally", 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from trainer.aggregation import weighted_mean
from trainer.methods.base import Context, State, Task, Updates
from trainer.methods.names import part_of, prefixed
from trainer.methods.unlike_method import INITIAL, LOCAL, UnlikeMethod, UnlikeTraining
from trainer.optimisers import MOMENTUM

HEAD = "head."


@dataclass(frozen=True)
class LgFedAvg(UnlikeTraining):
    """Settings of LG-FedAvg: those of local training of unlike networks."""

    name: ClassVar[str] = "lg-fedavg"

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> LgFedAvgMethod:
        """Return the method for this task."""
        return LgFedAvgMethod(self, task, dtype)


class SharedHeadMethod(UnlikeMethod):
    """A method whose devices get the head of their networks from the server in every round."""

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return what each group begins with, and the head of the first group for all."""
        server = super().initial_state(seed)
        return server | prefixed(HEAD, part_of(server, f"{INITIAL}0.{HEAD}"))

    def shared(self, server: State, device: str) -> State:
        """Return the head, named as in the device's network."""
        return prefixed(f"{LOCAL}{self.group_index(device)}.{HEAD}", part_of(server, HEAD))

    def keep(self, end: State, context: Context) -> State:
        """Return the extractor; the head comes down anew, and momentum begins anew."""
        kept = super().keep(end, context)
        return {name: tensor for name, tensor in kept.items() if f".{HEAD}" not in name or name.startswith(MOMENTUM)}


class LgFedAvgMethod(SharedHeadMethod):
    """LG-FedAvg bound to a task."""

    def upload(self, end: State, context: Context) -> State:
        """Return the head."""
        heads = {name: tensor for name, tensor in end.items() if name.startswith(LOCAL)}
        return {HEAD + name.split(f".{HEAD}")[1]: tensor for name, tensor in heads.items() if f".{HEAD}" in name}

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the mean head, weighted by sample counts."""
        return server | weighted_mean(updates)
