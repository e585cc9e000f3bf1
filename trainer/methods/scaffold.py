"""SCAFFOLD: local steps corrected by control variates, so that clients do not drift apart.

Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", ICML 2020, Algorithm 1 with option
II. A client takes K steps y <- y - eta * (g(y) - c_k + c) from the weights x that it was sent; its own control becomes
c_k - c + (x - y) / (K * eta) and never travels; weights and the control's change do. The server's step size is 1.

In the paper all clients weigh alike. Here they weigh by their sample counts as in FedAvg, in the weights and in the
control alike: c stays the mean of the c_k that belongs to the weighted objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocol.errors import InputError
from trainer.aggregation import weighted_mean
from trainer.methods.base import Batch, Context, Metrics, State, Task, Updates
from trainer.methods.classifier_method import LocalTraining
from trainer.methods.fedavg import FedAvgMethod
from trainer.methods.names import GLOBAL, part_of, prefixed, without

CONTROL, OWN_CONTROL, CHANGE = "control.", "own_control.", "control_change."
SAMPLES = "enrolled_samples"


@dataclass(frozen=True)
class Scaffold(LocalTraining):
    """Settings of SCAFFOLD: those of local training, in steps."""

    name: ClassVar[str] = "scaffold"

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        if self.local_epochs:
            hint = "set local_steps: controls are means over a number of steps that all clients share"
            raise InputError("scaffold takes no passes over the data", expected="local_epochs 0", got=self.local_epochs, hint=hint)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> ScaffoldMethod:
        """Return the method for this task."""
        return ScaffoldMethod(self, task, dtype)


class ScaffoldMethod(FedAvgMethod):
    """SCAFFOLD bound to a task."""

    def enrol(self, samples: Tensor, labels: Tensor) -> State:
        """Return the number of samples, by which the control is weighted."""
        return {"samples": torch.tensor(len(labels))}

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return freshly drawn weights, a control of zeros, and the samples of all participants."""
        weights = self.draw_weights(seed)
        samples = sum(int(told["samples"]) for told in (enrolled or {}).values())
        return weights | prefixed(CONTROL, _zeros_like(weights)) | {SAMPLES: torch.tensor(samples)}

    def global_weights(self, server: State) -> State:
        """Return the server's state without what belongs to the control."""
        return without(server, CONTROL, SAMPLES)

    def downlink(self, server: State, device: str) -> State:
        """Return weights and control."""
        return without(server, SAMPLES)

    def private_state(self, server: State, device: str) -> State:
        """Return a control of zeros."""
        return prefixed(OWN_CONTROL, _zeros_like(self.global_weights(server)))

    def context(self, server: State) -> Context:
        """Return the learning rate and the weights that the round began with."""
        return {**super().context(server), **prefixed(GLOBAL, self.global_weights(server))}

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one corrected step; the gradient is clipped before the correction."""
        after, metrics = super().step(without(state, CONTROL, OWN_CONTROL), batch, context)
        rate, control, own = context["learning_rate"], part_of(state, CONTROL), part_of(state, OWN_CONTROL)
        corrected = {name: tensor - rate * (control[name] - own[name]) for name, tensor in after.items()}
        return {**state, **corrected}, metrics

    def upload(self, end: State, context: Context) -> State:
        """Return the weights and the change of the client's control."""
        return without(end, CONTROL, OWN_CONTROL) | prefixed(CHANGE, self._change(end, context))

    def keep(self, end: State, context: Context) -> State:
        """Return the client's new control."""
        own, change = part_of(end, OWN_CONTROL), self._change(end, context)
        return prefixed(OWN_CONTROL, {name: tensor + change[name] for name, tensor in own.items()})

    def _change(self, end: State, context: Context) -> State:
        """Return (x - y) / (K * eta) - c for states stacked (M, *shape)."""
        length = self.training.local_steps * context["learning_rate"]
        received, control = part_of(context, GLOBAL), part_of(end, CONTROL)
        return {name: (tensor - end[name]) / length - control[name] for name, tensor in received.items()}

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the clients' mean, and the control moved by its mean change times the cohort's share of all samples."""
        mean, present = weighted_mean(updates), int(updates.sample_counts.sum())
        share = present / max(present, int(server[SAMPLES]))  # nobody enrolled: the cohort counts as all there are
        change = part_of(mean, CHANGE)
        control = {name: tensor + share * change[name] for name, tensor in part_of(server, CONTROL).items()}
        return {**server, **without(mean, CHANGE), **prefixed(CONTROL, control)}

    def sizes(self, server: State) -> dict[str, int]:
        """Return the number of weights and control entries that travel, and of weights that classify."""
        return {**super().sizes(server), "parameters": sum(tensor.numel() for tensor in self.downlink(server, "").values())}


def _zeros_like(state: State) -> State:
    """Return zeros in the shapes of a state."""
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}
