"""pFedHN: a hypernetwork on the server writes each participant's classifier from an embedding of that participant.

Shamsian et al., "Personalized federated learning using hypernetworks", ICML 2021, Algorithm 1. A round: participant i is
sent theta_i = h(v_i) and sends back where its local steps led. With delta_i = theta_i - theta_i' as the outputs' gradient,
the server takes a step of SGD with momentum on h, by the mean of J_h^T delta_i over the round's participants (the paper has
one a round), and on each v_i, by J_v^T delta_i. A new device fits an embedding to its labelled samples, with h frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias, cast

import torch
from torch import Tensor
from torch.func import functional_call, vjp

from edge_runtime.sampling import UniformBatches
from protocol.errors import InputError
from trainer.methods.adaptation import Adaptation
from trainer.methods.base import Batch, Context, DeviceView, Metrics, NewDeviceUses, Predictor, State, Task, Updates
from trainer.methods.checks import check_at_least, check_between, check_positive
from trainer.methods.classifier_method import LocalTraining
from trainer.methods.fedavg import FedAvgMethod
from trainer.methods.names import part_of, prefixed
from trainer.methods.parts import Part
from trainer.methods.pfedhn_network import EmbeddingHypernetwork
from trainer.optimisation import sgd_step

PullBack: TypeAlias = tuple[State, Callable[[State], tuple[State, Tensor]]]  # outputs, and from their gradients to the inputs'

NETWORK, EMBEDDING, MOMENTUM = "hypernetwork.", "embedding.", "momentum."


@dataclass(frozen=True)
class PFedHN(LocalTraining):
    """Settings of pFedHN: those of local training, and the server's.

    Attributes:
        embedding: Length of a participant's embedding.
        hidden: Units of the hypernetwork's layers.
        hidden_layers: Its layers after the first.
        server_rate: Learning rate of hypernetwork and embeddings.
        server_momentum: Momentum of both.
        embedding_steps: Steps that fit a new device's embedding.
        embedding_rate: Their learning rate.
    """

    name: ClassVar[str] = "pfedhn"

    embedding: int = 8
    hidden: int = 100
    hidden_layers: int = 3
    server_rate: float = 0.1
    server_momentum: float = 0.9
    embedding_steps: int = 100
    embedding_rate: float = 0.1

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        for name, least in {"embedding": 1, "hidden": 1, "hidden_layers": 0, "embedding_steps": 1}.items():
            check_at_least(name, getattr(self, name), least)
        for name in ("server_rate", "embedding_rate"):
            check_positive(name, getattr(self, name))
        check_between("server_momentum", self.server_momentum, 0.0, 0.999)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> PFedHNMethod:
        """Return the method for this task."""
        return PFedHNMethod(self, task, dtype)


class PFedHNMethod(FedAvgMethod):
    """pFedHN bound to a task."""

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return that labelled samples are read."""
        return "labels"

    def __init__(self, settings: PFedHN, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings
        self.adaptation = Adaptation()
        with torch.random.fork_rng(devices=[]):
            self.hypernetwork = self._draw_hypernetwork()

    def _draw_hypernetwork(self) -> EmbeddingHypernetwork:
        """Return the hypernetwork, drawn from torch's random state."""
        chosen, targets = self.settings, dict(self._draw_network().named_parameters())
        return EmbeddingHypernetwork(targets, chosen.embedding, chosen.hidden, chosen.hidden_layers).to(self.dtype)

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return a freshly drawn hypernetwork, an embedding for each participant, and momenta of zeros."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = {name: tensor.detach() for name, tensor in self._draw_hypernetwork().named_parameters()}
            embeddings = {device: torch.randn(self.settings.embedding).to(self.dtype) for device in sorted(enrolled or {})}
        trained = prefixed(NETWORK, network) | prefixed(EMBEDDING, embeddings)
        return trained | prefixed(MOMENTUM, {name: torch.zeros_like(tensor) for name, tensor in trained.items()})

    def generate(self, network: Mapping[str, Tensor], embeddings: Tensor) -> State:
        """Return classifiers' weights (M, *shape) for embeddings (M, E) under the hypernetwork's weights."""
        weights: State = functional_call(self.hypernetwork, dict(network), (embeddings,))
        return weights

    def classifier_of(self, server: State, embedding: Tensor) -> State:
        """Return the weights (*shape) of one embedding (E,)."""
        with torch.no_grad():
            return {name: tensor[0] for name, tensor in self.generate(part_of(server, NETWORK), embedding.unsqueeze(0)).items()}

    def downlink(self, server: State, device: str) -> State:
        """Return the participant's classifier."""
        if EMBEDDING + device not in server:
            raise InputError("pfedhn trains participants only", expected="a device that enrolled", got=device)
        return self.classifier_of(server, server[EMBEDDING + device])

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return hypernetwork and embeddings after the server's step."""
        network = part_of(server, NETWORK)
        totals = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in network.items()}
        gradients: State = {}
        place = 0
        for chunk in updates.chunks:
            devices = updates.devices[place : place + len(next(iter(chunk.values())))]
            own, of_embeddings = self._pull_back(server, devices, chunk)
            for name, total in totals.items():
                total.add_(own[name])
            gradients |= {EMBEDDING + device: row for device, row in zip(devices, of_embeddings, strict=True)}
            place += len(devices)
        means = {name: (total / len(updates.devices)).to(self.dtype) for name, total in totals.items()}
        return self._descend(server, gradients | prefixed(NETWORK, means))

    def _pull_back(self, server: State, devices: Sequence[str], ends: State) -> tuple[State, Tensor]:
        """Return the hypernetwork's gradients, summed over devices, and the embeddings' (m, E), from weights (m, *shape)."""
        embeddings = torch.stack([server[EMBEDDING + device] for device in devices])  # (m, E)
        sent, pull_back = cast("PullBack", vjp(self.generate, part_of(server, NETWORK), embeddings))
        return pull_back({name: tensor.detach() - ends[name] for name, tensor in sent.items()})

    def _descend(self, server: State, gradients: State) -> State:
        """Return the state after a step of SGD with momentum; who has no gradient stays, momentum included."""
        after = dict(server)
        for name, gradient in gradients.items():
            after[MOMENTUM + name] = self.settings.server_momentum * server[MOMENTUM + name] + gradient
            after[name] = server[name] - self.settings.server_rate * after[MOMENTUM + name]
        return after

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return a participant's classifier, or that of an embedding fitted to a new device's labelled support.

        Without labels the embedding is the participants' mean, to which nothing was trained: gACC tells how it does.
        """
        if EMBEDDING + view.device in server:
            return self.predictor_of(self.downlink(server, view.device))
        start = torch.stack(list(part_of(server, EMBEDDING).values())).mean(dim=0)  # (E,)
        phase = self.repeat("fit_embedding", self.fit, UniformBatches(self.settings.batch_size), self.settings.embedding_steps)
        rate = {"learning_rate": torch.tensor(self.settings.embedding_rate, dtype=self.dtype)}
        context = rate | prefixed(NETWORK, part_of(server, NETWORK))
        return self.predictor_of(self.classifier_of(server, self.adaptation.adapt(phase, {"own": start}, view, context)["own"]))

    def fit(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return a new device's embedding after one step; the hypernetwork is frozen."""

        def loss(state: State) -> Tensor:
            weights = self.generate(part_of(context, NETWORK), state["own"].unsqueeze(0))  # (1, *shape)
            return self.loss({name: tensor[0] for name, tensor in weights.items()}, batch)

        return sgd_step(loss, state, context["learning_rate"], self.training.clip_norm)

    def parts(self, server: State) -> tuple[Part, ...]:
        """Refuse: a new device's classifier needs labels and gradient steps."""
        hint = "train hyperfedzero, whose embedding comes from unlabelled samples"
        raise InputError("pfedhn makes no classifier without labels", expected="a method that needs none", got="pfedhn", hint=hint)

    def sizes(self, server: State) -> dict[str, int]:
        """Return the weights of one classifier, which is what travels; the hypernetwork stays on the server."""
        classifier = super().sizes(server)["classifier_parameters"]
        return {"parameters": classifier, "classifier_parameters": classifier}
