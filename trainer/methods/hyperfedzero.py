"""HyperFedZero: a classifier for a device that never took part, from its unlabelled samples alone.

Zhou et al., "Deploying models to non-participating clients in federated learning without fine-tuning: a
hypernetwork-based approach", arXiv 2508.12673. The extractor and the hypernetwork are averaged like FedAvg's weights;
the classifier has no federated weights of its own, or only its body.

Ours, beyond the paper: scope ``device`` (the mean embedding of a support set makes one classifier; the paper's scope
is ``sample``) and episodes, batches with a random class mix. Trained on the participants' own mixes alone, ``device``
memorises them and fails on new devices. A third addition is the label term: while training, a linear head must tell a
sample's class from its embedding, so that the mean embedding tells the class mix; the head is not exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from edge_runtime.sampling import BatchPolicy, EpisodeBatches, UniformBatches
from trainer.aggregation import weighted_mean
from trainer.hypernetwork import HypernetworkSize
from trainer.methods.base import (
    Batch,
    Context,
    DeviceView,
    MethodBase,
    Metrics,
    NewDeviceUses,
    Phase,
    Predictor,
    RandomInput,
    Repeat,
    State,
    Task,
    Updates,
)
from trainer.methods.checks import check_between, check_local_training, check_positive
from trainer.methods.distribution_embedding import DistributionExtractor, ExtractorSize, balancing_penalty, embedding_entropy
from trainer.methods.hyperfedzero_network import (
    Classify,
    Embed,
    Features,
    Forward,
    Generate,
    HyperFedZeroNetwork,
    Scope,
    Tailored,
    load_frozen,
)
from trainer.methods.parts import Part, PartTensor
from trainer.models.mlp import Normalise
from trainer.models.registry import build_model
from trainer.optimisation import cross_entropy, sgd_step


@dataclass(frozen=True)
class HyperFedZero:
    """Settings of HyperFedZero.

    Attributes:
        model: The classifier, by a name of ``trainer.models.registry`` or ``module:factory``.
        extractor: Sizes of the extractor.
        noise: Whether NoisyEmbed draws noise in training; off, because it has not helped ``device`` so far.
        balance_weight: Weight of the balancing penalty.
        entropy_weight: Weight of the entropy term.
        label_weight: Weight of the cross-entropy of labels read from single embeddings; 0 for the paper's loss.
        hypernetwork: Sizes of the chunked hypernetwork.
        tailored: ``whole``: every weight of the classifier is generated; ``head``: only its last layer's.
        scope: ``device``: one classifier for a support set; ``sample``: one for each sample.
        episode_probability: Share of the local steps whose batch has a random class mix.
        episode_concentration: Dirichlet parameter of those mixes.
        learning_rate: Rate of the local SGD.
        local_steps: Steps of each client in a round.
        batch_size: Samples in a step.
        clip_norm: Maximum joint norm of the gradients; 0 for no clipping.
    """

    name: ClassVar[str] = "hyperfedzero"

    model: str = "mlp-64"
    extractor: ExtractorSize = field(default_factory=ExtractorSize)
    noise: bool = False
    balance_weight: float = 0.0
    entropy_weight: float = 0.0
    label_weight: float = 0.3
    hypernetwork: HypernetworkSize = field(default_factory=HypernetworkSize)
    tailored: Tailored = "whole"
    scope: Scope = "device"
    episode_probability: float = 0.7
    episode_concentration: float = 0.2
    learning_rate: float = 0.1
    local_steps: int = 20
    batch_size: int = 64
    clip_norm: float = 5.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        check_between("episode_probability", self.episode_probability, 0.0, 1.0)
        check_positive("episode_concentration", self.episode_concentration)
        for name in ("balance_weight", "entropy_weight", "label_weight"):
            check_between(name, getattr(self, name), 0.0, 1e6)
        check_local_training(self.learning_rate, self.local_steps, self.batch_size, self.clip_norm)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> HyperFedZeroMethod:
        """Return the method for this task."""
        return HyperFedZeroMethod(self, task, dtype)


class HyperFedZeroMethod(MethodBase):
    """HyperFedZero bound to a task."""

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return that unlabelled samples are read."""
        return "samples"

    def __init__(self, settings: HyperFedZero, task: Task, dtype: torch.dtype) -> None:
        self.settings = settings
        self.task = task
        self.dtype = dtype
        self.network = self._network()

    def _network(self) -> HyperFedZeroNetwork:
        """Return the networks, freshly drawn; the caller's random state is left alone."""
        with torch.random.fork_rng(devices=[]):
            return self._draw_network()

    def _draw_network(self) -> HyperFedZeroNetwork:
        """Return the networks, drawn from torch's random state."""
        chosen, shape = self.settings, self.task.sample_shape
        extractor = DistributionExtractor(shape, chosen.extractor, chosen.noise)
        classifier = build_model(chosen.model, shape, len(self.task.classes))
        normalise = Normalise(self.task.minimum, self.task.maximum)
        readable = len(self.task.classes) if chosen.label_weight else 0
        return HyperFedZeroNetwork(normalise, extractor, classifier, chosen.tailored, chosen.hypernetwork, readable).to(self.dtype)

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return freshly drawn parameters of extractor, noise network, hypernetwork and, for a head, the body."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._draw_network().federated_parameters()

    def phases(self) -> tuple[Phase, ...]:
        """Return the one phase: local SGD on episodes."""
        chosen = self.settings
        draw: BatchPolicy = UniformBatches(chosen.batch_size)
        if chosen.episode_probability > 0:
            draw = EpisodeBatches(chosen.batch_size, chosen.episode_probability, chosen.episode_concentration)
        noise = (RandomInput("noise", (chosen.batch_size, chosen.extractor.embedding)),) if chosen.noise else ()
        return (Repeat("train_local", self.step, draw, chosen.local_steps, noise),)

    def context(self, server: State) -> Context:
        """Return the learning rate, a scalar."""
        return {"learning_rate": torch.tensor(self.settings.learning_rate, dtype=self.dtype)}

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step of SGD on cross-entropy plus penalties."""

        def loss(parameters: State) -> Tensor:
            inputs = (batch["samples"], batch.get("noise"), self.settings.scope)
            forward: Forward = functional_call(self.network, parameters, inputs)
            return cross_entropy(forward.logits, batch["labels"]) + self._embedding_loss(forward, batch["labels"])

        return sgd_step(loss, state, context["learning_rate"], self.settings.clip_norm)

    def _embedding_loss(self, forward: Forward, labels: Tensor) -> Tensor:
        """Return the weighted terms on the embeddings of samples with labels (B,), a scalar."""
        embeddings = forward.embeddings  # (B, E)
        total = embeddings.new_zeros(())
        if forward.label_logits is not None:
            total = total + self.settings.label_weight * cross_entropy(forward.label_logits, labels)
        if self.settings.balance_weight:
            total = total + self.settings.balance_weight * balancing_penalty(embeddings)
        if self.settings.entropy_weight:
            total = total + self.settings.entropy_weight * embedding_entropy(embeddings)
        return total

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the mean weighted by sample counts."""
        return weighted_mean(updates)

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return a device's tailored classifier; of the device it uses unlabelled samples only."""
        network = load_frozen(self._network(), server)
        if self.settings.scope == "sample":
            return lambda samples: network(samples, None, "sample").logits
        with torch.no_grad():
            condition = network.extractor(network.normalise(view.support)).mean(dim=0, keepdim=True)  # (1, E)
            weights = {name: tensor.squeeze(0) for name, tensor in network.generate(condition).items()}
        return lambda samples: network.classify(weights, network.normalise(samples))

    def device_embedding(self, server: State, support: Tensor) -> Tensor:
        """Return the mean embedding (E,) of a support set."""
        network = load_frozen(self._network(), server).to(support.device)
        embeddings: Tensor = network.extractor(network.normalise(support))  # (N, E)
        return embeddings.mean(dim=0)

    def parts(self, server: State) -> tuple[Part, ...]:
        """Return ``embed``, ``features``, ``generate`` and ``classify``."""
        network = load_frozen(self._network(), server)
        classes, embedding = len(self.task.classes), self.settings.extractor.embedding
        samples = self.task.samples_tensor()
        embeddings = PartTensor("embedding", "float32", ("batch", embedding), "distribution embedding on the simplex")
        features = PartTensor("features", "float32", ("batch", self.settings.extractor.hidden), "features for class prototypes")
        logits = PartTensor("logits", "float32", ("batch", classes), "class scores before the softmax")
        own_axis = ("batch",) if self.settings.scope == "sample" else ()
        return (
            Part("embed", Embed(network), (samples,), (embeddings,)),
            Part("features", Features(network), (samples,), (features,)),
            Part("generate", Generate(network), (embeddings,), self._weights(network, ("batch",))),
            Part("classify", Classify(network, self.settings.scope), (samples, *self._weights(network, own_axis)), (logits,), True),
        )

    def _weights(self, network: HyperFedZeroNetwork, leading: tuple[str, ...]) -> tuple[PartTensor, ...]:
        """Return the tailored weights as named tensors with these leading axes."""
        targets = network.hypernetwork.targets.items()
        return tuple(
            PartTensor(f"weight.{name}", "float32", (*leading, *shape), "tailored classifier weight", -1.0) for name, shape in targets
        )

    def sizes(self, server: State) -> dict[str, int]:
        """Return the parameters that travel, and those of the classifier as it runs."""
        classifier = sum(parameter.numel() for parameter in self.network.classifier.parameters())
        return {"parameters": sum(tensor.numel() for tensor in server.values()), "classifier_parameters": classifier}
