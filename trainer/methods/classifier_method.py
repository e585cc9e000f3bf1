"""What methods share whose state is one classifier network: building it, its loss, its global predictor, its parts.

A subclass says only how it differs from averaging.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from edge_runtime.sampling import BatchPolicy, EpochBatches, UniformBatches
from trainer.checkpoints import check_state
from trainer.methods.base import Batch, Context, DeviceView, LocalStep, MethodBase, Predictor, RandomInput, Repeat, State, Task
from trainer.methods.checks import check_at_least, check_between, check_local_training
from trainer.methods.names import part_of
from trainer.methods.parts import Part, PartTensor
from trainer.models.dropout import dropout_inputs
from trainer.models.mlp import Normalise
from trainer.models.registry import build_model
from trainer.optimisation import cross_entropy, log_frequencies

MASK = "dropout."
TRAINED = "classify_trained"  # the entry point that a device feeds its own state


@dataclass(frozen=True)
class LocalTraining:
    """Settings of local SGD on one classifier.

    Attributes:
        model: The classifier, by a name of ``trainer.models.registry`` or ``module:factory``.
        learning_rate: Rate of the local SGD.
        local_steps: Steps of each client in a round.
        local_epochs: Passes over the local data instead of ``local_steps``; 0 for steps.
        batch_size: Samples in a step.
        clip_norm: Maximum joint norm of the gradients; 0 for no clipping.
        balanced_softmax: Weight of the logarithm of the batch's class frequencies added to the logits in training: 1 makes
            the classifier one of balanced classes, which the class prior of a device can then correct; 0 for the plain loss.
    """

    model: str = "mlp-64"
    learning_rate: float = 0.1
    local_steps: int = 20
    local_epochs: int = 0
    batch_size: int = 64
    clip_norm: float = 5.0
    balanced_softmax: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        check_local_training(self.learning_rate, self.local_steps, self.batch_size, self.clip_norm)
        check_at_least("local_epochs", self.local_epochs, 0)
        check_between("balanced_softmax", self.balanced_softmax, 0.0, 10.0)

    def draw(self) -> BatchPolicy:
        """Return how batches are drawn."""
        return EpochBatches(self.batch_size, self.local_epochs) if self.local_epochs else UniformBatches(self.batch_size)


class ClassifierMethod(MethodBase):
    """A method whose server state is the weights of one classifier."""

    def __init__(self, settings: LocalTraining, task: Task, dtype: torch.dtype) -> None:
        self.training = settings
        self.task = task
        self.dtype = dtype
        self.network = self._network()

    def _network(self) -> nn.Sequential:
        """Return normalisation and classifier, freshly drawn; the caller's random state is left alone."""
        with torch.random.fork_rng(devices=[]):
            return self._draw_network()

    def _draw_network(self) -> nn.Sequential:
        """Return normalisation and classifier, drawn from torch's random state."""
        classifier = build_model(self.training.model, self.task.sample_shape, len(self.task.classes))
        return nn.Sequential(Normalise(self.task.minimum, self.task.maximum), classifier).to(self.dtype)

    def draw_weights(self, seed: int) -> State:
        """Return freshly drawn weights by name."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return {name: tensor.detach() for name, tensor in self._draw_network().named_parameters()}

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return freshly drawn weights."""
        return self.draw_weights(seed)

    def train_phase(self, step: LocalStep, name: str = "train_local") -> Repeat:
        """Return the phase that repeats a step as the settings say."""
        return self.repeat(name, step, self.training.draw(), None if self.training.local_epochs else self.training.local_steps)

    def repeat(self, name: str, step: LocalStep, draw: BatchPolicy, count: int | None) -> Repeat:
        """Return a phase whose batches hold the random bytes that the classifier's dropout needs."""
        declared = dropout_inputs(self.network[1])
        masks = tuple(RandomInput(MASK + each.name, (draw.batch_size, *each.shape), "bytes") for each in declared)
        return Repeat(name, step, draw, count, masks)

    def context(self, server: State) -> Context:
        """Return the learning rate, a scalar."""
        return {"learning_rate": torch.tensor(self.training.learning_rate, dtype=self.dtype)}

    def logits(self, weights: Mapping[str, Tensor], samples: Tensor, masks: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return logits (B, C) of raw samples (B, *shape) under these weights; masks switch dropout on."""
        normalise, classifier = self.network[0], self.network[1]
        own = {name.removeprefix("1."): tensor for name, tensor in weights.items()}
        inputs = (normalise(samples), masks) if masks else (normalise(samples),)
        result: Tensor = functional_call(classifier, own, inputs)
        return result

    def loss(self, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the mean cross-entropy of a batch, a scalar."""
        return self.loss_of(self.batch_logits(weights, batch), batch)

    def batch_logits(self, weights: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return logits (B, C) of a batch under these weights, with the dropout that the batch has random bytes for."""
        return self.logits(weights, batch["samples"], part_of(batch, MASK))

    def loss_of(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of logits (B, C) of a batch, a scalar."""
        if self.training.balanced_softmax:
            shift = log_frequencies(batch["labels"], logits, batch.get("weights"))  # (C,)
            logits = logits + self.training.balanced_softmax * shift  # (B, C)
        return cross_entropy(logits, batch["labels"], batch.get("weights"))

    def global_weights(self, server: State) -> State:
        """Return the weights of the classifier that everybody shares; all of the server's state unless a subclass says otherwise."""
        return server

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the global network; the device changes nothing."""
        return self.predictor_of(self.global_weights(server))

    def predictor_of(self, weights: State) -> Predictor:
        """Return the classifier with these weights."""
        return lambda samples: self.logits(weights, samples)

    def parts(self, server: State) -> tuple[Part, ...]:
        """Return the classifier with its weights as constants."""
        weights = self.global_weights(server)
        check_state(dict(self.network.named_parameters()), weights)
        return (self.classify_part(self.network_with(weights)),)

    def trained_classifier(self, prefix: str = "") -> Part:
        """Return the classifier with weights as inputs, ``state.`` before the names that they have in a device's state.

        Args:
            prefix: What stands before a weight's name in the state.
        """
        weights = dict(self.network.named_parameters())
        start = f"state.{prefix}"
        inputs = [
            PartTensor(start + name, "float32", tuple(each.shape), "weight after local steps", -0.1, 0.1) for name, each in weights.items()
        ]
        logits = PartTensor("logits", "float32", ("batch", len(self.task.classes)), "class scores before the softmax")

        def classify(samples: Tensor, state: Mapping[str, Tensor]) -> Tensor:
            return self.logits({name: state[start + name] for name in weights}, samples)

        return Part(TRAINED, classify, (self.task.samples_tensor(), *inputs), (logits,), gathered=len(inputs))

    def network_with(self, weights: State) -> nn.Sequential:
        """Return normalisation and classifier with these weights, frozen."""
        network = self._network()
        for name, tensor in weights.items():
            module, _, own = name.rpartition(".")
            setattr(network.get_submodule(module), own, nn.Parameter(tensor, requires_grad=False))
        return network

    def classify_part(self, network: nn.Module) -> Part:
        """Return a network from raw samples to logits as the part that classifies."""
        logits = PartTensor("logits", "float32", ("batch", len(self.task.classes)), "class scores before the softmax")
        return Part("classify", network, (self.task.samples_tensor(),), (logits,), judged_by_label=True)

    def sizes(self, server: State) -> dict[str, int]:
        """Return the number of weights that travel and of those that classify."""
        classifier = sum(parameter.numel() for parameter in self.network.parameters())
        return {"parameters": sum(tensor.numel() for tensor in server.values()), "classifier_parameters": classifier}
