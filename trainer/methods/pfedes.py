"""pFedES, distilled: unlike networks learn from a small proxy that travels in their place, and it from them.

A device first trains its own network on its labels and on what the global proxy thinks (the reverse term), then its copy of
the proxy on what its network thinks. Only proxies travel: their mean is what devices go on from, a moving average of the means is
the teacher. Without the reverse term nothing comes back to a device's network, and it is bit for bit that of training alone.

The idea of a proxy is that of Yi et al. (AAAI 2025), whose own form, a proxy in front of the network, is ``pfedes-paper``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from trainer.aggregation import client_states, weighted_sum
from trainer.distillation import softened_divergence
from trainer.methods.base import Batch, Context, DeviceView, Metrics, Phase, Predictor, Repeat, State, Task, Updates
from trainer.methods.checks import check_at_least, check_between, check_positive
from trainer.methods.names import part_of, prefixed
from trainer.methods.proxy_averaging import capped_shares, clipped, moving_average, without_bias
from trainer.methods.proxy_method import PROXY, ClassifyingProxyMethod
from trainer.methods.unlike_method import LOCAL, UnlikeTraining
from trainer.optimisation import cross_entropy, log_frequencies

TEACHER, AVERAGE, ROUNDS = "teacher.", "average.", "rounds_done"


@dataclass(frozen=True)
class PFedES(UnlikeTraining):
    """Settings of pFedES, distilled.

    Attributes:
        proxy: The proxy's model.
        proxy_rate: Rate of its SGD.
        proxy_epochs: Its passes over the local data in a round.
        proxy_batch_size: Samples in one of its steps.
        temperature: T, softens both sides of every divergence.
        alpha: Weight of the proxy's divergence from the device's network.
        label_weight: Weight of the cross-entropy in the proxy's loss.
        reverse_weight: Weight of the network's divergence from the teacher; 0 to send nothing back.
        reverse_from: First round, 0-based, in which the teacher is listened to: before it, nobody has taught it.
        decay: Share of the moving average that stays from round to round.
        average_every: Rounds between two steps of the moving average.
        weight_cap: Largest share of one device in the mean; 1 for none.
        update_norm: Largest distance that one device's proxy may lie from the global one; 0 for none.
        federated: Whether proxies travel; false keeps each with its device, the control that tells what federation adds.
        proxy_vote: Share of the teacher in a participant's prediction, under the device's class frequencies; 0 to predict with
            the device's own network alone.
    """

    name: ClassVar[str] = "pfedes"

    proxy: str = "proxy-strided"
    proxy_rate: float = 0.1
    proxy_epochs: int = 2
    proxy_batch_size: int = 40
    temperature: float = 4.0
    alpha: float = 1.0
    label_weight: float = 1.0
    reverse_weight: float = 1.0
    reverse_from: int = 1
    decay: float = 0.8
    average_every: int = 1
    weight_cap: float = 1.0
    update_norm: float = 0.0
    federated: bool = True
    proxy_vote: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_positive("proxy_rate", self.proxy_rate)
        for name, least in (("proxy_epochs", 1), ("proxy_batch_size", 1), ("reverse_from", 0), ("average_every", 1)):
            check_at_least(name, getattr(self, name), least)
        check_between("temperature", self.temperature, 0.1, 100.0)
        for name in ("alpha", "label_weight", "reverse_weight", "update_norm"):
            check_between(name, getattr(self, name), 0.0, 1e6)
        check_between("decay", self.decay, 0.0, 0.9999)
        check_between("weight_cap", self.weight_cap, 1e-6, 1.0)
        check_between("proxy_vote", self.proxy_vote, 0.0, 1.0)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> PFedESMethod:
        """Return the method for this task."""
        return PFedESMethod(self, task, dtype)


class PFedESMethod(ClassifyingProxyMethod):
    """pFedES, distilled, bound to a task."""

    def __init__(self, settings: PFedES, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, settings.proxy, task, dtype)
        self.settings = settings

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return what each group begins with, the global proxy, a moving average of nothing, and that no round is done."""
        server = super().initial_state(seed, enrolled)
        average = {AVERAGE + name: torch.zeros_like(tensor) for name, tensor in part_of(server, PROXY).items()}
        return server | average | {ROUNDS: torch.zeros(1, dtype=self.dtype)}

    def shared(self, server: State, device: str) -> State:
        """Return the global proxy and the teacher: two proxies; nothing where each device keeps its own."""
        return self._proxies(server) if self.settings.federated else {}

    def _proxies(self, server: State) -> State:
        """Return the global proxy and the teacher."""
        return prefixed(PROXY, part_of(server, PROXY)) | prefixed(TEACHER, self.teacher(server))

    def teacher(self, server: State) -> State:
        """Return the moving average of the global proxies; the first one before there is any."""
        steps = int(server[ROUNDS].item()) // self.settings.average_every
        return without_bias(part_of(server, AVERAGE), self.settings.decay, steps) if steps else part_of(server, PROXY)

    def private_state(self, server: State, device: str) -> State:
        """Return the group's common beginning; with proxies of its own where none travel."""
        own = super().private_state(server, device)
        return own if self.settings.federated else own | self._proxies(server) | self._own_average(server)

    def _own_average(self, server: State) -> State:
        """Return a moving average of nothing."""
        return {name: tensor for name, tensor in server.items() if name.startswith((AVERAGE, ROUNDS))}

    def context(self, server: State) -> Context:
        """Return the rates and the weight of the reverse term in this round, scalars."""
        heeded = self.settings.reverse_weight if int(server[ROUNDS].item()) >= self.settings.reverse_from else 0.0
        numbers = {"proxy_rate": self.settings.proxy_rate, "reverse_weight": heeded}
        return {**super().context(server), **{name: torch.tensor(value, dtype=self.dtype) for name, value in numbers.items()}}

    def phases(self) -> tuple[Phase, ...]:
        """Return the training of the device's network, then that of its proxy."""
        draw = self.training.draw(self.settings.proxy_batch_size, self.settings.proxy_epochs)
        return (self.train_phase(), Repeat("train_proxy", self.proxy_step, draw, None))

    def local_loss(self, weights: State, state: State, batch: Batch, context: Context) -> Tensor:
        """Return cross-entropy plus the divergence from the teacher, a scalar."""
        logits, own = self.local_outputs(weights, batch["samples"])[1], batch.get("weights")  # (B, C), (B,)
        loss = cross_entropy(logits, batch["labels"], own)
        if not self.settings.reverse_weight:
            return loss
        target = self.proxy_outputs(state, batch["samples"], TEACHER).detach()  # (B, C)
        return loss + context["reverse_weight"] * softened_divergence(target, logits, self.settings.temperature, own)

    def proxy_step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step of the proxy towards the device's network."""
        weights = {name: tensor for name, tensor in state.items() if name.startswith(LOCAL)}
        target = self.local_outputs(weights, batch["samples"])[1].detach()  # (B, C)
        moved = self.descend(lambda proxy: self._proxy_loss(proxy, target, batch), state, PROXY, context["proxy_rate"])
        return state | moved.state, {"loss": moved.loss}

    def _proxy_loss(self, proxy: State, target: Tensor, batch: Batch) -> Tensor:
        """Return the proxy's divergence from the network's logits (B, C), and its cross-entropy, by their weights, a scalar."""
        logits, own = self.proxy_outputs(proxy, batch["samples"]), batch.get("weights")  # (B, C), (B,)
        loss = self.settings.alpha * softened_divergence(target, logits, self.settings.temperature, own)
        if self.settings.label_weight:
            loss = loss + self.settings.label_weight * cross_entropy(logits, batch["labels"], own)
        return loss

    def upload(self, end: State, context: Context) -> State:
        """Return the proxy; nothing where each device keeps its own."""
        return super().upload(end, context) if self.settings.federated else {}

    def keep(self, end: State, context: Context) -> State:
        """Return the device's own network; with its own proxies where none travel."""
        kept = super().keep(end, context)
        if self.settings.federated:
            return kept
        rounds = end[ROUNDS] + 1  # (M, 1)
        proxy, decay = part_of(end, PROXY), self.settings.decay
        average = moving_average(part_of(end, AVERAGE), proxy, decay)
        teacher = without_bias(average, decay, float(rounds.flatten()[0]))
        return kept | prefixed(PROXY, proxy) | prefixed(AVERAGE, average) | prefixed(TEACHER, teacher) | {ROUNDS: rounds}

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the mean of the proxies, and the moving average one step on."""
        done = {ROUNDS: server[ROUNDS] + 1}
        if not self.settings.federated:
            return server | done
        start = part_of(server, PROXY)
        proxies = [clipped(part_of(state, PROXY), start, self.settings.update_norm) for state in client_states(updates)]
        mean = weighted_sum(proxies, capped_shares(updates.sample_counts.tolist(), self.settings.weight_cap))
        after = server | done | prefixed(PROXY, {name: tensor.to(self.dtype) for name, tensor in mean.items()})
        if int(done[ROUNDS].item()) % self.settings.average_every == 0:
            after |= prefixed(AVERAGE, moving_average(part_of(server, AVERAGE), mean, self.settings.decay))
        return after

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the device's own network, with a share of the teacher if the settings say so.

        Without labels and anything kept it is the teacher alone: what gACC tells is the proxy's quality.
        """
        if view.labels is None and not view.private:
            teacher = prefixed(TEACHER, self.teacher(server))
            return lambda samples: self.proxy_outputs(teacher, samples, TEACHER)
        state = self.trained_state(server, view)
        if not self.settings.proxy_vote or view.labels is None:
            return self.predictor_of(state)
        return self._vote(state, view.labels)

    def _vote(self, state: State, labels: Tensor) -> Predictor:
        """Return the mixture of the device's network and of the teacher under the class frequencies of the device's labels (N,)."""
        share = self.settings.proxy_vote
        local = {name: tensor for name, tensor in state.items() if name.startswith(LOCAL)}
        prior = log_frequencies(labels, torch.zeros(1, len(self.task.classes), dtype=self.dtype, device=labels.device))  # (C,)

        def vote(samples: Tensor) -> Tensor:
            own = torch.log_softmax(self.local_outputs(local, samples)[1], dim=1)  # (B, C)
            told = torch.log_softmax(self.proxy_outputs(state, samples, TEACHER) + prior, dim=1)  # (B, C)
            return (1 - share) * own + share * told  # (B, C)

        return vote
