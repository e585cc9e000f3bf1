"""FedAvg: one network for everybody (McMahan et al., "Communication-efficient learning of deep networks", 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from edge_runtime.sampling import UniformBatches
from trainer.aggregation import weighted_mean
from trainer.checkpoints import check_state
from trainer.methods.base import Batch, Context, Metrics, Predictor, Repeat, State, Task, Updates
from trainer.methods.checks import check_at_least, check_local_training
from trainer.methods.parts import Part, PartTensor
from trainer.models.mlp import MLP, Normalise
from trainer.optimisation import cross_entropy, sgd_step


@dataclass(frozen=True)
class FedAvg:
    """Settings of FedAvg.

    Attributes:
        hidden: Hidden units of the classifier MLP.
        learning_rate: Rate of the local SGD.
        local_steps: Steps of each client in a round.
        batch_size: Samples in a step.
        clip_norm: Maximum joint norm of the gradients.
    """

    name: ClassVar[str] = "fedavg"

    hidden: int = 64
    learning_rate: float = 0.1
    local_steps: int = 20
    batch_size: int = 64
    clip_norm: float = 5.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        check_at_least("hidden", self.hidden, 1)
        check_local_training(self.learning_rate, self.local_steps, self.batch_size, self.clip_norm)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedAvgMethod:
        """Return the method for this task."""
        return FedAvgMethod(self, task, dtype)


class FedAvgMethod:
    """FedAvg bound to a task."""

    def __init__(self, settings: FedAvg, task: Task, dtype: torch.dtype) -> None:
        self.settings = settings
        self.task = task
        self.dtype = dtype
        self.network = self._network()

    def _network(self) -> nn.Sequential:
        """Return normalisation and classifier, freshly drawn; the caller's random state is left alone."""
        with torch.random.fork_rng(devices=[]):
            return self._draw_network()

    def _draw_network(self) -> nn.Sequential:
        """Return normalisation and classifier, drawn from torch's random state."""
        classifier = MLP(self.task.sample_shape, [self.settings.hidden], len(self.task.classes))
        return nn.Sequential(Normalise(self.task.minimum, self.task.maximum), classifier).to(self.dtype)

    def initial_state(self, seed: int) -> State:
        """Return freshly drawn weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return {name: tensor.detach() for name, tensor in self._draw_network().named_parameters()}

    def downlink(self, server: State, device: str) -> State:
        """Return the global weights, the same for every device."""
        return server

    def phases(self) -> tuple[Repeat, ...]:
        """Return the one phase: local SGD on uniform batches."""
        return (Repeat("train_local", self.step, UniformBatches(self.settings.batch_size), self.settings.local_steps),)

    def context(self) -> Context:
        """Return the learning rate, a scalar."""
        return {"learning_rate": torch.tensor(self.settings.learning_rate, dtype=self.dtype)}

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step of SGD on the cross-entropy."""

        def loss(weights: Mapping[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(self.network, dict(weights), (batch["samples"],))  # (B, C)
            return cross_entropy(logits, batch["labels"])

        return sgd_step(loss, state, context["learning_rate"], self.settings.clip_norm)

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the mean weighted by sample counts."""
        return weighted_mean(updates)

    def predictor(self, server: State) -> Predictor:
        """Return the global network; it ignores the support set."""
        return _GlobalPredictor(self.network, server)

    def parts(self, server: State) -> tuple[Part, ...]:
        """Return the classifier with its weights as constants."""
        network = self._network()
        check_state(dict(network.named_parameters()), server)
        network.load_state_dict(server, strict=False)  # what is left are buffers, which hold the normalisation
        samples = self.task.samples_tensor()
        logits = PartTensor("logits", "float32", ("batch", len(self.task.classes)), "class scores before the softmax")
        return (Part("classify", network, (samples,), (logits,), judged_by_label=True),)

    def sizes(self, server: State) -> dict[str, int]:
        """Return the number of weights."""
        count = sum(tensor.numel() for tensor in server.values())
        return {"parameters": count, "classifier_parameters": count}


@dataclass(frozen=True)
class _GlobalPredictor:
    """The same weights for every device."""

    network: nn.Module
    weights: State

    def logits(self, support: Tensor, query: Tensor) -> Tensor:
        """Return logits (B, C) of query samples (B, *shape)."""
        logits: Tensor = functional_call(self.network, self.weights, (query,))
        return logits
