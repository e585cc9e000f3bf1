"""HyperFedZero: a classifier for a device that never took part, from its unlabelled samples alone.

Zhou et al., "Deploying models to non-participating clients in federated learning without fine-tuning: a
hypernetwork-based approach", arXiv 2508.12673. The extractor and the hypernetwork are averaged like FedAvg's weights;
in the paper the classifier has no federated weights of its own.

Ours, beyond the paper: scope ``device`` (the mean embedding of a support set makes one classifier; the paper's scope
is ``sample``); episodes, batches with a random class mix; a base, federated weights that the hypernetwork changes instead
of writing them whole; and the class prior. For the prior, a linear head reads a sample's class from its embedding, and both
it and the classifier learn under the batch's class frequencies (balanced softmax, Ren et al., NeurIPS 2020; Menon et al.,
"Long-tail learning via logit adjustment", ICLR 2021), so that neither bends to the mix of the client it trains on. The mean
of what the head reads from a support set is the device's class prior, and its logarithm is added to the logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from edge_runtime.sampling import BatchPolicy, EpisodeBatches, UniformBatches
from protocol.errors import InputError
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
    PriorPredictor,
    RandomInput,
    Repeat,
    State,
    Task,
    Updates,
)
from trainer.methods.checks import check_between, check_local_training, check_positive
from trainer.methods.distribution_embedding import DistributionExtractor, ExtractorSize, balancing_penalty, embedding_entropy
from trainer.methods.hyperfedzero_network import (
    PRIOR_FLOOR,
    Classify,
    Embed,
    Features,
    Forward,
    Generate,
    HyperFedZeroNetwork,
    NetworkPlan,
    Scope,
    Tailored,
    check_unrolled,
    load_frozen,
    log_prior,
)
from trainer.methods.parts import Part, PartTensor
from trainer.models.mlp import Normalise
from trainer.models.registry import build_model
from trainer.optimisation import cross_entropy, log_frequencies, sgd_step

LOG_PRIOR = "log_prior"
# The parity gate draws weights of up to so many times 1/sqrt(fan-in): with it signals keep their size through any number of ReLU
# layers (He et al., "Delving deep into rectifiers", 2015). Larger ones grow layer by layer and only test float32's rounding.
WEIGHT_SPREAD = math.sqrt(6)


@dataclass(frozen=True)
class HyperFedZero:
    """Settings of HyperFedZero.

    Attributes:
        model: The classifier, by a name of ``trainer.models.registry`` or ``module:factory``.
        extractor: Sizes of the extractor.
        noise: Whether NoisyEmbed draws noise in training; off, because it has not helped ``device`` so far.
        balance_weight: Weight of the balancing penalty.
        entropy_weight: Weight of the entropy term.
        label_weight: Weight of the cross-entropy of labels read from single embeddings; 0 for no label head.
        balanced_softmax: Weight of the logarithm of the batch's class frequencies added to logits in training; 0 for the plain
            loss.
        prior: ``read``: the class prior that the label head reads from the support is added to the logits; ``none``: it is not.
        base: Whether the classifier has federated weights that the hypernetwork changes; else it writes them whole.
        change_scale: Size of those changes at the start, as a share of weights written whole.
        hypernetwork: Sizes of the chunked hypernetwork.
        tailored: ``whole``: every weight of the classifier is tailored; ``head``: only its last layer's; ``none``: the prior alone;
            ``input``: no weight, the classifier (an MLP) reads the mean embedding beside its input (the paper's Opt. 1).
        scope: ``device``: one classifier for a support set; ``sample``: one for each sample.
        episode_probability: Share of the local steps whose batch has a random class mix; without a base it is needed, with one
            it has not helped.
        episode_concentration: Dirichlet parameter of those mixes.
        learning_rate: Rate of the local SGD.
        local_steps: Steps of each client in a round.
        batch_size: Samples in a step.
        clip_norm: Maximum joint norm of the gradients; 0 for no clipping.
    """

    name: ClassVar[str] = "hyperfedzero"

    model: str = "mlp-64"
    extractor: ExtractorSize = field(default_factory=lambda: ExtractorSize(hidden=24, pool=2))
    noise: bool = False
    balance_weight: float = 0.0
    entropy_weight: float = 0.0
    label_weight: float = 0.3
    balanced_softmax: float = 1.0
    prior: Literal["none", "read"] = "read"
    base: bool = True
    change_scale: float = 0.3
    hypernetwork: HypernetworkSize = field(default_factory=lambda: HypernetworkSize(hidden=8))
    tailored: Tailored = "whole"
    scope: Scope = "device"
    episode_probability: float = 0.0
    episode_concentration: float = 0.2
    learning_rate: float = 0.1
    local_steps: int = 20
    batch_size: int = 64
    clip_norm: float = 5.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        check_between("episode_probability", self.episode_probability, 0.0, 1.0)
        check_positive("episode_concentration", self.episode_concentration)
        for name in ("balance_weight", "entropy_weight", "label_weight", "balanced_softmax", "change_scale"):
            check_between(name, getattr(self, name), 0.0, 1e6)
        self._check_together()
        check_local_training(self.learning_rate, self.local_steps, self.batch_size, self.clip_norm)

    def _check_together(self) -> None:
        """Refuse settings that contradict each other."""
        if self.prior == "read" and self.label_weight == 0 and self.scope == "device":
            raise InputError(
                "the class prior is read by the label head", expected="label_weight above 0, or prior none", got="label_weight 0"
            )
        if self.tailored == "none" and not (self.base and self.reads_prior):
            raise InputError(
                "nothing would be tailored", expected="tailored whole or head, or base true and prior read", got="tailored none"
            )

    @property
    def reads_prior(self) -> bool:
        """Tell whether a device's class prior is read: a single sample has none."""
        return self.prior == "read" and self.scope == "device"

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
        inputs = (math.prod(shape) + chosen.extractor.embedding,) if chosen.tailored == "input" else shape
        classifier = build_model(chosen.model, inputs, len(self.task.classes))
        normalise = Normalise(self.task.minimum, self.task.maximum)
        readable = len(self.task.classes) if chosen.label_weight else 0
        plan = NetworkPlan(chosen.tailored, chosen.base, chosen.change_scale, chosen.hypernetwork, readable)
        return HyperFedZeroNetwork(normalise, extractor, classifier, plan).to(self.dtype)

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
            return self._loss(forward, batch["labels"])

        return sgd_step(loss, state, context["learning_rate"], self.settings.clip_norm)

    def _loss(self, forward: Forward, labels: Tensor) -> Tensor:
        """Return the weighted sum of all terms for a batch with labels (B,), a scalar."""
        chosen, embeddings = self.settings, forward.embeddings  # (B, E)
        shift: Tensor | float = chosen.balanced_softmax * log_frequencies(labels, forward.logits) if chosen.balanced_softmax else 0.0
        total = cross_entropy(forward.logits + shift, labels)
        if forward.label_logits is not None:
            total = total + chosen.label_weight * cross_entropy(forward.label_logits + shift, labels)
        if chosen.balance_weight:
            total = total + chosen.balance_weight * balancing_penalty(embeddings)
        if chosen.entropy_weight:
            total = total + chosen.entropy_weight * embedding_entropy(embeddings)
        return total

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the mean weighted by sample counts."""
        return weighted_mean(updates)

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return a device's tailored classifier; of the device it uses unlabelled samples only."""
        network = load_frozen(self._network(), server).to(view.support.device)
        if self.settings.scope == "sample":
            return lambda samples: network(samples, None, "sample").logits
        with torch.no_grad():
            embeddings = network.extractor(network.normalise(view.support))  # (N, E)
            weights = {name: tensor.squeeze(0) for name, tensor in network.generate(embeddings.mean(dim=0, keepdim=True)).items()}

        def scores(samples: Tensor) -> Tensor:
            return network.classify(weights, network.normalise(samples))

        if not self.settings.reads_prior:
            return scores
        with torch.no_grad():
            return PriorPredictor(scores, log_prior(network.label_posteriors(embeddings).mean(dim=0)))

    def device_embedding(self, server: State, support: Tensor) -> Tensor:
        """Return the mean embedding (E,) of a support set."""
        network = load_frozen(self._network(), server).to(support.device)
        embeddings: Tensor = network.extractor(network.normalise(support))  # (N, E)
        return embeddings.mean(dim=0)

    def parts(self, server: State) -> tuple[Part, ...]:
        """Return ``embed``, ``features``, ``generate`` and ``classify``."""
        network, prior = load_frozen(self._network(), server), self.settings.reads_prior
        if self.settings.scope == "sample":
            check_unrolled(network, self.task.sample_shape)
        classes, embedding = len(self.task.classes), self.embedding_size
        samples = self.task.samples_tensor()
        meaning = "distribution embedding on the simplex" + (", then the class prior" if prior else "")
        embeddings = PartTensor("embedding", "float32", ("batch", embedding), meaning)
        features = PartTensor("features", "float32", ("batch", self.settings.extractor.hidden), "features for class prototypes")
        logits = PartTensor("logits", "float32", ("batch", classes), "class scores before the softmax")
        own_axis = ("batch",) if self.settings.scope == "sample" else ()
        classify = Classify(network, self.settings.scope, with_prior=prior)
        return (
            Part("embed", Embed(network, with_prior=prior), (samples,), (embeddings,)),
            Part("features", Features(network), (samples,), (features,)),
            Part("generate", Generate(network, with_prior=prior), (embeddings,), self._weights(network, ("batch",))),
            Part("classify", classify, (samples, *self._weights(network, own_axis)), (logits,), True),
        )

    @property
    def embedding_size(self) -> int:
        """Return the length of what ``embed`` gives: E, or E + C where the class prior is read."""
        return self.settings.extractor.embedding + (len(self.task.classes) if self.settings.reads_prior else 0)

    def _weights(self, network: HyperFedZeroNetwork, leading: tuple[str, ...]) -> tuple[PartTensor, ...]:
        """Return the tailored weights as named tensors with these leading axes, the log prior last if it is read."""
        shapes = {name: tuple(shape) for name, shape in network.targets.items()}
        if self.settings.reads_prior:
            shapes[LOG_PRIOR] = (len(self.task.classes),)
        return tuple(_weight_tensor(name, shape, leading) for name, shape in shapes.items())

    def sizes(self, server: State) -> dict[str, int]:
        """Return the parameters that travel, and those of the classifier as it runs."""
        classifier = sum(parameter.numel() for parameter in self.network.classifier.parameters())
        return {"parameters": sum(tensor.numel() for tensor in server.values()), "classifier_parameters": classifier}


def _weight_tensor(name: str, shape: tuple[int, ...], leading: tuple[str, ...]) -> PartTensor:
    """Return a tailored weight as the input or output of a part, with the range in which such weights lie."""
    if name == LOG_PRIOR:
        return PartTensor(f"weight.{name}", "float32", (*leading, *shape), "logarithms of the class prior", math.log(PRIOR_FLOOR), 0.0)
    largest = WEIGHT_SPREAD / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 1.0
    return PartTensor(f"weight.{name}", "float32", (*leading, *shape), "tailored classifier weight", -largest, largest)
