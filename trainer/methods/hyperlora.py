"""HyperLoRA: low-rank factors for each device from its distribution signature (Gupta, Shanker and Sethi, arXiv 2606.06154).

A device tells its signature once, on enrolment; a generator on the server writes the factors and the head that it starts each
round from. Devices train and send as in FedIT. With theta_i the start and theta_i' the end of device i, the generator then moves
towards

    target_j = G(s_j) + sum_i k(s_i, s_j) (theta_i' - theta_i)        for every registered device j

so devices that look alike learn from each other; k(s, s) = 1, and heads, which follow private class mixes, are shared less. A device
that never took part gets its factors from unlabelled samples, at once.

Ours, for want of the paper's text: signature, kernel, and this training, by which no client sees the generator. The aggregate
pair is the exact optimum of the products' mean; after it a residual correction of B is zero, so there is none. It is kept as the
one model for everybody, but a mean of specialists serves nobody well: a device whose signature is like no other's has its samples
routed, each to the registered signature under which its features are likeliest.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from edge_runtime.distribution_signature import SignatureParts
from trainer.methods.base import DeviceView, NewDeviceUses, Predictor, State, Task, Updates
from trainer.methods.checks import check_at_least, check_between, check_positive
from trainer.methods.flexlora import nearest_pairs
from trainer.methods.lora_generator import GeneratorSize, LoraGenerator
from trainer.methods.lora_method import ENROLLED, LoraMethod, LoraTraining
from trainer.methods.lora_parts import adapted_parts, without_head
from trainer.methods.lora_signatures import RAW, kernel, log_densities, measure, normalised, registered, table
from trainer.methods.names import part_of, prefixed
from trainer.methods.parts import Part
from trainer.optimisers import Adam

GENERATOR = "generator."
ADAM_EPSILON = 1e-6  # larger than usual: rounding in gradients of nearly zero would else decide a step's sign


@dataclass(frozen=True)
class HyperLoRA(LoraTraining):
    """Settings of HyperLoRA: those of local adaptation, and the server's.

    Attributes:
        signature: Parts of the distribution signature.
        signature_size: Samples that it is measured on, at most.
        generator: Sizes of the generator.
        kernel_width: How far apart devices learn from each other, in units of the distance between two domains.
        head_share: Share of the kernel that heads of other devices have.
        server_steps: Steps of Adam on the generator in a round.
        server_rate: Their learning rate.
        novelty: Squared distance from all registered signatures beyond which a new device counts as unlike them.
        fallback: What such a device runs: ``route``: for each sample the factors of the likeliest registered device; ``global``: the
            aggregate pair; ``none``: what the generator writes all the same.
    """

    name: ClassVar[str] = "hyperlora"

    signature: SignatureParts = field(default_factory=SignatureParts)
    signature_size: int = 200
    generator: GeneratorSize = field(default_factory=GeneratorSize)
    kernel_width: float = 0.42
    head_share: float = 0.2
    server_steps: int = 40
    server_rate: float = 2e-3
    novelty: float = 8.0
    fallback: Literal["route", "global", "none"] = "route"

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        for name in ("signature_size", "server_steps"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("kernel_width", "server_rate", "novelty"):
            check_positive(name, getattr(self, name))
        check_between("head_share", self.head_share, 0.0, 1.0)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> HyperLoRAMethod:
        """Return the method for this task."""
        return HyperLoRAMethod(self, task, dtype)


class HyperLoRAMethod(LoraMethod):
    """HyperLoRA bound to a task."""

    def __init__(self, settings: HyperLoRA, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.own = settings
        self.features = without_head(self.network, self.head)
        probe = torch.full((2, *task.sample_shape), task.minimum).to(getattr(torch, task.dtype))
        labels = torch.zeros(2, dtype=torch.int64)
        self.signature_length = len(measure(task, settings.signature, self.features, probe, labels))
        with torch.random.fork_rng(devices=[]):
            self.generator = self._draw_generator(0)

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return that unlabelled samples are read, or labels where new devices take steps or signatures count classes."""
        needs_labels = self.settings.new_devices == "steps" or self.own.signature.class_frequencies
        return "labels" if needs_labels else "samples"

    def _draw_generator(self, seed: int) -> LoraGenerator:
        """Return a freshly drawn generator, whose base are freshly drawn factors and head."""
        drawn = self.draw_adapter(seed)
        groups = [[name for name in self.trained_names if name.startswith(f"{layer}.lora_")] for layer in self.layers]
        layers = [{name: drawn[name] for name in group} for group in [*groups, self.head_names]]
        torch.manual_seed(seed)
        return LoraGenerator(layers, self.signature_length, self.own.generator).to(self.dtype)

    def enrol(self, samples: Tensor, labels: Tensor) -> State:
        """Return the signature (S,) and the number of samples."""
        return {**super().enrol(samples, labels), "signature": self._measure(samples, labels)}

    def _measure(self, samples: Tensor, labels: Tensor | None) -> Tensor:
        """Return the signature (S,) of a device's samples (N, *shape)."""
        size = self.own.signature_size
        return measure(self.task, self.own.signature, self.features, samples[:size], None if labels is None else labels[:size])

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return a freshly drawn pair and generator, and the registered signatures."""
        with torch.random.fork_rng(devices=[]):
            generator = {name: each.detach().clone() for name, each in self._draw_generator(seed).named_parameters()}
        told = {device: each["signature"] for device, each in sorted((enrolled or {}).items())}
        known = registered(told, self.own.signature, self.signature_length)
        return super().initial_state(seed, enrolled) | prefixed(GENERATOR, generator) | known

    def generate(self, server: State, signatures: Tensor) -> State:
        """Return factors and head (M, *shape) for normalised signatures (M, S)."""
        where = server[f"{GENERATOR}embeddings"]
        written: State = functional_call(self.generator, part_of(server, GENERATOR), (signatures.to(where),))
        return written

    def _of_signature(self, server: State, raw: Tensor) -> State:
        """Return factors and head (*shape) for one raw signature (S,)."""
        own = torch.from_numpy(normalised(server, self.own.signature, raw)).unsqueeze(0)  # (1, S)
        with torch.no_grad():
            return {name: tensor[0] for name, tensor in self.generate(server, own).items()}

    def start_of(self, server: State, device: str) -> State:
        """Return what the generator writes for a registered device; the aggregate pair for others."""
        if RAW + device in server:
            return self._of_signature(server, server[RAW + device])
        return super().start_of(server, device)

    def start_for(self, server: State, view: DeviceView) -> State:
        """Return the same for a device whose samples may be looked at: one unlike all others falls back on the aggregate pair."""
        if RAW + view.device in server:
            return self.start_of(server, view.device)
        raw = self._measure(view.support, view.labels)
        if self.own.fallback == "global" and self.novelty(server, raw) > self.own.novelty:
            return super().start_of(server, view.device)
        return self._of_signature(server, raw)

    def novelty(self, server: State, raw: Tensor) -> float:
        """Return the squared distance of a raw signature (S,) from the nearest registered one; infinity if there is none."""
        _, known = table(server, self.own.signature)
        own = torch.from_numpy(normalised(server, self.own.signature, raw))  # (S,)
        return float((known - own).square().sum(dim=1).min()) if len(known) else float("inf")

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the classifier of a device; that of one unlike all others routes its samples, unless it takes steps."""
        takes_steps = ENROLLED + view.device in server or self.settings.new_devices == "steps"
        routes = self.own.fallback == "route" and self.own.signature.features and not takes_steps
        if routes and part_of(server, RAW) and self.novelty(server, self._measure(view.support, view.labels)) > self.own.novelty:
            self.check_backbone(server)
            return self._routed(server)
        return super().predictor(server, view)

    def _routed(self, server: State) -> Predictor:
        """Return a classifier that gives each sample the factors of the registered device under which it is likeliest."""
        devices, signatures = table(server, self.own.signature)
        with torch.no_grad():
            written = self.generate(server, signatures)

        def predict(samples: Tensor) -> Tensor:
            nearest = log_densities(server, self.features(samples)).argmax(dim=1)  # (B,)
            logits = samples.new_zeros((len(samples), len(self.task.classes)), dtype=self.dtype)
            for place in range(len(devices)):
                rows = torch.nonzero(nearest == place).squeeze(1)
                if len(rows):
                    logits[rows] = self.logits({name: tensor[place] for name, tensor in written.items()}, samples[rows])
            return logits

        return predict

    def device_embedding(self, server: State, support: Tensor) -> Tensor | None:
        """Return the normalised signature (S,) of a device's support samples (N, *shape)."""
        if self.own.signature.class_frequencies:
            return None
        return torch.from_numpy(normalised(server, self.own.signature, self._measure(support, None)))

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the generator moved towards the round's targets, and the pair nearest to the mean of products."""
        pair = nearest_pairs(self, server, updates)
        devices, signatures = table(server, self.own.signature)
        with torch.no_grad():
            starts = self.generate(server, signatures)  # (M, *shape)
            targets = self._targets(starts, signatures, updates, [devices.index(device) for device in updates.devices])
        return {**pair, **prefixed(GENERATOR, self._fitted(server, signatures, targets))}

    def _targets(self, starts: State, signatures: Tensor, updates: Updates, cohort: list[int]) -> State:
        """Return where every registered device's tensors should be, (M, *shape), from what the cohort moved."""
        shared = kernel(signatures, self.own.kernel_width)[:, cohort]  # (M, m)
        is_own = torch.arange(len(signatures)).unsqueeze(1) == torch.tensor(cohort)  # (M, m)
        of_heads = torch.where(is_own, shared, self.own.head_share * shared)  # (M, m)
        ends = updates.state
        targets = {}
        for name, start in starts.items():
            weights = (of_heads if name in self.head_names else shared).to(start)  # (M, m)
            targets[name] = start + torch.tensordot(weights, ends[name].to(start) - start[cohort], dims=1)  # (M, *shape)
        return targets

    def _fitted(self, server: State, signatures: Tensor, targets: State) -> State:
        """Return the generator's weights after some steps of Adam on the mean squared distance from the targets."""
        rule, weights = Adam(epsilon=ADAM_EPSILON), part_of(server, GENERATOR)
        rate = torch.tensor(self.own.server_rate, dtype=self.dtype)
        slots, size = rule.slots(weights), sum(tensor.numel() for tensor in targets.values())
        where = signatures.to(weights["embeddings"])

        def loss(weights: State) -> Tensor:
            written: State = functional_call(self.generator, weights, (where,))
            squares = [(written[name] - target).square().sum() for name, target in targets.items()]
            return torch.stack(squares).sum() / size

        gradients_of = torch.func.grad(loss)
        for _ in range(self.own.server_steps):
            weights, slots = rule.update(weights, gradients_of(weights), slots, rate)
        return weights

    def parts(self, server: State) -> tuple[Part, ...]:
        """Return ``features``, ``generate_lora`` and ``classify``, whose factors and head are inputs."""
        self.check_backbone(server)
        generator = copy.deepcopy(self.generator).requires_grad_(requires_grad=False)
        generator.load_state_dict(part_of(server, GENERATOR))
        adapter = {name: server[name] for name in self.trained_names}
        networks = self.features, copy.deepcopy(self.network).requires_grad_(requires_grad=False), generator
        return adapted_parts(self.task, networks, adapter, self.signature_length)
