"""Methods made for tests of engines: each answers the whole contract and differs in the one thing that is looked at."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from edge_runtime.sampling import UniformBatches
from trainer.aggregation import weighted_mean
from trainer.methods.base import Batch, Context, DeviceView, MethodBase, Metrics, Once, Phase, Predictor, Repeat, State, Updates
from trainer.methods.parts import Part

RATE = 0.1


class Toy(MethodBase):
    """A weight that runs after the mean of the batches."""

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        return {"w": torch.full((4, 4), 0.5, dtype=torch.float64)}

    def context(self, server: State) -> Context:
        return {"learning_rate": torch.tensor(RATE, dtype=torch.float64)}

    def phases(self) -> tuple[Phase, ...]:
        return (Repeat("follow", self.step, UniformBatches(4), 2),)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        difference = state["w"] - batch["samples"].to(torch.float64).mean(dim=0)
        return {**state, "w": state["w"] - context["learning_rate"] * difference}, {"loss": difference.square().mean()}

    def aggregate(self, server: State, updates: Updates) -> State:
        return {**server, **weighted_mean(updates)}

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        return lambda samples: samples.flatten(1)

    def parts(self, server: State) -> tuple[Part, ...]:
        return ()

    def sizes(self, server: State) -> dict[str, int]:
        return {"parameters": 16, "classifier_parameters": 16}


class TwoArchitectures(Toy):
    """Every second device has twice the units; what goes up has one shape for all."""

    def downlink(self, server: State, device: str) -> State:
        return {"w": server["w"], "units": server["w"].flatten().repeat(1 + int(device[-1]) % 2)}

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        after, metrics = super().step(state, batch, context)
        return {**after, "units": state["units"] - context["learning_rate"] * state["units"].square()}, metrics

    def upload(self, end: State, context: Context) -> State:
        return {"w": end["w"] + end["units"].mean(dim=1)[:, None, None]}


class Private(Toy):
    """A device counts its steps, and keeps what it saw last."""

    def private_state(self, server: State, device: str) -> State:
        return {"steps": torch.zeros(3, dtype=torch.float64), "seen": torch.full((4, 4), float(device[-1]), dtype=torch.float64)}

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        after, metrics = super().step(state, batch, context)
        return {**after, "steps": state["steps"] + 1, "seen": state["seen"] + 10 * state["w"]}, metrics

    def upload(self, end: State, context: Context) -> State:
        return {"w": end["w"]}

    def keep(self, end: State, context: Context) -> State:
        return {"steps": end["steps"], "seen": end["seen"]}


class OnceBeforeSteps(Toy):
    """A statistic of all of a device's data comes first, and a weight that everybody was sent becomes the device's own."""

    def context(self, server: State) -> Context:
        return {**super().context(server), "shared": server["w"]}

    def downlink(self, server: State, device: str) -> State:
        return {**server, "mean": torch.zeros(4, 4, dtype=torch.float64), "labels": torch.zeros(3, dtype=torch.float64)}

    def phases(self) -> tuple[Phase, ...]:
        return (Once("look", self.look), *super().phases(), Once("end", self.end))

    def look(self, state: State, samples: Tensor, labels: Tensor, context: Context) -> State:
        mean = samples.to(torch.float64).mean(dim=0)
        counts = torch.bincount(labels, minlength=3).to(torch.float64)
        return {**state, "w": context["shared"], "mean": mean, "labels": counts}

    def end(self, state: State, samples: Tensor, labels: Tensor, context: Context) -> State:
        return {**state, "w": state["w"] + state["mean"] * state["labels"].sum()}

    def upload(self, end: State, context: Context) -> State:
        return {"w": end["w"]}


class NoSteps(Toy):
    """Nothing is trained; one phase takes no step, the other only looks."""

    def phases(self) -> tuple[Phase, ...]:
        return (Repeat("idle", self.step, UniformBatches(4), 0), Once("look", lambda state, samples, labels, context: state))
