"""FedJets: experts for parts of the classes, and a gate that sends each sample to one of them.

Dun et al., "FedJETs: efficient just-in-time personalization with federated mixture of experts", arXiv 2306.08586. The gate
reads features of a frozen common expert. In a round it picks K of M experts on a client's data; the client trains gate
and experts; the server averages the gate, and each expert over those who trained it. Anchor clients with distinct class
mixes are tied to one expert each by a further loss of the gate. At prediction the gate picks one expert for each sample.

Only part of the paper was at hand. Ours are: a common expert from FedAvg in the first rounds of the same budget, of which
the experts begin as copies; the loss, that of a mixture of the client's experts' probabilities, which unlike one of their
logits makes each expert right by itself; the choice of anchors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from trainer.aggregation import weighted_mean, weighted_mean_by_slot
from trainer.methods.base import Batch, Context, DeviceView, Metrics, NewDeviceUses, Once, Phase, Predictor, State, Task, Updates
from trainer.methods.checks import check_at_least, check_between
from trainer.methods.classifier_method import LocalTraining
from trainer.methods.fedavg import FedAvgMethod
from trainer.methods.fedjets_routing import RoutedExperts, choose_anchors, draw_gate, gate_scores, head_of, mixture, without_head
from trainer.methods.names import part_of, prefixed, without
from trainer.methods.parts import Part
from trainer.optimisation import descend, mean_of_samples

COMMON, GATE, EXPERTS, CHOSEN, ANCHORS = "common.", "gate.", "experts.", "chosen.", "anchors."
ANCHOR, CHOICE, ROUNDS = "anchor", "choice", "rounds_done"


@dataclass(frozen=True)
class FedJets(LocalTraining):
    """Settings of FedJets: those of local training, and of routing.

    Attributes:
        experts: Experts M on the server.
        experts_per_client: Experts K that a client trains in a round.
        warmup_rounds: Rounds, of all, in which the common expert is trained.
        anchor_weight: Weight of the loss that ties an anchor client to its expert.
    """

    name: ClassVar[str] = "fedjets"

    experts: int = 5
    experts_per_client: int = 2
    warmup_rounds: int = 100
    anchor_weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        for name in ("experts", "warmup_rounds"):
            check_at_least(name, getattr(self, name), 1)
        check_between("experts_per_client", self.experts_per_client, 1, self.experts)
        check_between("anchor_weight", self.anchor_weight, 0.0, 1e6)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> FedJetsMethod:
        """Return the method for this task."""
        return FedJetsMethod(self, task, dtype)


class FedJetsMethod(FedAvgMethod):
    """FedJets bound to a task. A client's state holds the common expert while that is trained, and gate and experts after."""

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return that unlabelled samples are read: each routes itself."""
        return "samples"

    def __init__(self, settings: FedJets, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.settings = settings
        self.head = head_of(dict(self.network.named_parameters()), len(task.classes))

    def enrol(self, samples: Tensor, labels: Tensor) -> State:
        """Return the samples of each class, (C,)."""
        return {"class_counts": torch.bincount(labels, minlength=len(self.task.classes))}

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return a freshly drawn common expert and gate, experts equal to the common one, and the anchor clients."""
        common, experts = self.draw_weights(seed), self.settings.experts
        gate = draw_gate(common[f"{self.head}.weight"].shape[1], experts, seed, self.dtype)
        counts = {device: told["class_counts"].cpu() for device, told in (enrolled or {}).items()}
        anchors = prefixed(ANCHORS, choose_anchors(counts, experts, self.dtype))
        return prefixed(COMMON, common) | prefixed(GATE, gate) | self._copies(common) | anchors | {ROUNDS: torch.tensor(0)}

    def _copies(self, common: State) -> State:
        """Return experts that are all equal to the common one."""
        return {EXPERTS + name: torch.stack([tensor] * self.settings.experts) for name, tensor in common.items()}

    def downlink(self, server: State, device: str) -> State:
        """Return the common expert in the first rounds; then the gate, all experts, and the one that the client anchors."""
        if int(server[ROUNDS]) < self.settings.warmup_rounds:
            return prefixed(COMMON, part_of(server, COMMON))
        nowhere = torch.zeros_like(server[f"{GATE}bias"])  # (M,)
        return without(server, COMMON, ANCHORS, ROUNDS) | {ANCHOR: server.get(ANCHORS + device, nowhere)}

    def context(self, server: State) -> Context:
        """Return the learning rate and the common expert, which gives the gate its features."""
        return {**super().context(server), **prefixed(COMMON, part_of(server, COMMON))}

    def phases(self) -> tuple[Phase, ...]:
        """Return two phases: the gate chooses experts, then local SGD."""
        return (Once("choose_experts", self.choose_experts), self.train_phase(self.routed_step))

    def features(self, context: Context, samples: Tensor) -> Tensor:
        """Return the common expert's features (B, D) of raw samples (B, *shape)."""
        return self.logits(without_head(part_of(context, COMMON), self.head), samples)

    def choose_experts(self, state: State, samples: Tensor, labels: Tensor, context: Context) -> State:
        """Return the state with the K experts that the gate prefers on the client's samples; an anchor's own is among them."""
        if ANCHOR not in state:
            return state
        with torch.no_grad():
            scores = gate_scores(part_of(state, GATE), self.features(context, samples))  # (N, M)
        shares = torch.softmax(scores, dim=1).mean(dim=0)  # (M,)
        choice = (shares + state[ANCHOR]).topk(self.settings.experts_per_client).indices.sort().values  # (K,)
        chosen = {CHOSEN + name: tensor[choice] for name, tensor in part_of(state, EXPERTS).items()}
        return without(state, EXPERTS) | chosen | {CHOICE: choice}

    def routed_step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step: on the common expert in the first rounds, then on gate and chosen experts."""
        if ANCHOR not in state:
            after, metrics = self.step(part_of(state, COMMON), batch, context)
            return prefixed(COMMON, after), metrics
        trained = without(state, ANCHOR, CHOICE)
        features = self.features(context, batch["samples"])  # (B, D)

        def loss(trained: State) -> tuple[Tensor, Tensor]:
            scores = gate_scores(part_of(trained, GATE), features)  # (B, M)
            logits = vmap(lambda expert: self.batch_logits(expert, batch))(part_of(trained, CHOSEN))  # (K, B, C)
            own = self.loss_of(mixture(logits, scores, state[CHOICE]), batch)
            missed = -mean_of_samples(torch.log_softmax(scores, dim=1) @ state[ANCHOR], batch.get("weights"))
            return own + self.settings.anchor_weight * missed, own

        gradients, (_, value) = grad_and_value(loss, has_aux=True)(trained)
        return {**state, **descend(trained, gradients, context["learning_rate"], self.training.clip_norm)}, {"loss": value}

    def upload(self, end: State, context: Context) -> State:
        """Return what was trained, and which experts they are."""
        return without(end, ANCHOR)

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the mean of the common expert in the first rounds; then that of the gate, and of each expert by itself."""
        after = {**server, ROUNDS: server[ROUNDS] + 1}
        if CHOICE not in updates.chunks[0]:
            common = weighted_mean(updates)
            return after | common | self._copies(part_of(common, COMMON))
        gate = replace(updates, chunks=tuple(prefixed(GATE, part_of(chunk, GATE)) for chunk in updates.chunks))
        chosen = weighted_mean_by_slot(updates, CHOICE, prefixed(CHOSEN, part_of(server, EXPERTS)))
        return after | weighted_mean(gate) | prefixed(EXPERTS, part_of(chosen, CHOSEN))

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the experts behind the gate; of a device nothing is read but the samples to classify."""
        return self._routed(server)

    def parts(self, server: State) -> tuple[Part, ...]:
        """Return the experts behind the gate, with their weights as constants."""
        return (self.classify_part(self._routed(server)),)

    def _routed(self, server: State) -> RoutedExperts:
        """Return the classifier that every device runs."""
        experts = part_of(server, EXPERTS)
        own = [self.network_with({name: tensor[place] for name, tensor in experts.items()}) for place in range(self.settings.experts)]
        common = self.network_with(without_head(part_of(server, COMMON), self.head))
        return RoutedExperts(common, part_of(server, GATE), own)

    def sizes(self, server: State) -> dict[str, int]:
        """Return what a client sends up after the first rounds, and the common expert, the gate and one expert."""
        network = super().sizes(server)["classifier_parameters"]
        gate = sum(tensor.numel() for tensor in part_of(server, GATE).values())
        return {"parameters": gate + self.settings.experts_per_client * network, "classifier_parameters": gate + 2 * network}

    def trained_part(self) -> Part | None:
        """Return None: a state holds several experts."""
        return None
