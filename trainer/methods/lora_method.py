"""What federated low-rank adaptation methods share: a frozen backbone, factors and head that train, local SGD with momentum.

The server's state holds factors A (R, I) and B (O, R) of every adapted layer and the head, under their names in the network, and
for some methods a dense change of frozen weights. The backbone itself is a constant: it comes from a file or from a fixed
seed, never travels, and a digest in the state tells whether it is still the same one.

A participant classifies after ``personal_steps`` steps on its own labelled samples from what the server would send it; a device
that never took part takes none and needs no label, unless ``new_devices`` says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from edge_runtime.sampling import UniformBatches
from protocol.errors import InputError, RunFolderError
from trainer.lora import FACTOR_A, FACTOR_B, LoraLinear, LoraPattern, merged, with_lora
from trainer.methods.adaptation import Adaptation
from trainer.methods.base import Batch, Context, DeviceView, Metrics, NewDeviceUses, Phase, Predictor, State, Task
from trainer.methods.checks import check_at_least, check_between
from trainer.methods.classifier_method import TRAINED, ClassifierMethod, LocalTraining
from trainer.methods.names import part_of, prefixed, without
from trainer.methods.parts import Part, PartTensor
from trainer.models.mlp import Normalise
from trainer.models.registry import build_model
from trainer.models.weights import load_weights, read_weights
from trainer.optimisers import MOMENTUM, Descent, Sgd

FROZEN = "frozen."  # factors that a round does not train
CHANGE = "change."  # what was added to a frozen weight, (O, I)
ENROLLED = "enrolled."
DIGEST = "backbone_digest"
BACKBONE_SEED = 0
INNER = "1."  # the network's name behind the normalisation


@dataclass(frozen=True)
class LoraTraining(LocalTraining):
    """Settings of local low-rank adaptation.

    Attributes:
        momentum: Of the local SGD; it begins anew each round.
        backbone: A safetensors file with the frozen weights; empty: weights drawn from a fixed seed, for tests.
        patterns: Which linear layers are adapted, with rank and alpha; never the head.
        personal_steps: Steps that a device takes on its labels before it classifies; 0: as many as in a round.
        new_devices: ``unlabelled``: they take no step; ``steps``: they take those of participants, on labels.
    """

    model: str = "vit-tiny"
    learning_rate: float = 0.05
    local_steps: int = 10
    batch_size: int = 16
    momentum: float = 0.9
    backbone: str = ""
    patterns: tuple[LoraPattern, ...] = (LoraPattern(".*", 4, 4.0),)
    personal_steps: int = 0
    new_devices: Literal["unlabelled", "steps"] = "unlabelled"

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_between("momentum", self.momentum, 0.0, 0.999)
        check_at_least("personal_steps", self.personal_steps, 0)
        if not self.patterns:
            raise InputError("no layer would be adapted", expected="one pattern or more", got="none")


class LoraMethod(ClassifierMethod):
    """A federated adaptation bound to a task; a subclass says how updates are aggregated."""

    settings: LoraTraining

    def __init__(self, settings: LoraTraining, task: Task, dtype: torch.dtype) -> None:
        self.settings = settings
        self.training, self.task = settings, task
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(BACKBONE_SEED)
            plain = build_model(settings.model, task.sample_shape, len(task.classes))
        self.head = head_of(plain)
        self.backbone = _backbone_weights(plain, settings.backbone, self.head)
        self.digest = _digest(self.backbone)
        self.adaptation = Adaptation()
        super().__init__(settings, task, dtype)
        trained = [name for name, each in self.network.named_parameters() if each.requires_grad]
        self.head_names = [name for name in trained if not name.endswith((FACTOR_A, FACTOR_B))]
        self.layers = [name.removesuffix(f".{FACTOR_A}") for name in trained if name.endswith(FACTOR_A)]
        self.trained_names = tuple(trained)

    def _draw_network(self) -> nn.Sequential:
        """Return normalisation and adapted classifier: head and factors drawn from torch's random state, the backbone as it is."""
        classifier = build_model(self.training.model, self.task.sample_shape, len(self.task.classes))
        load_weights(classifier, self.backbone, self.head)
        patterns = [replace(each, layers=rf"(?!{self.head}$)(?:{each.layers})") for each in self.settings.patterns]
        adapted = with_lora(classifier, patterns, seed=int(torch.randint(2**31, ())))
        for name, parameter in adapted.named_parameters():
            is_head = name.startswith(f"{self.head}.")
            parameter.requires_grad = is_head or name.endswith((FACTOR_A, FACTOR_B))
        return nn.Sequential(Normalise(self.task.minimum, self.task.maximum), adapted).to(self.dtype)

    def scale_of(self, layer: str) -> float:
        """Return the scale alpha / R of an adapted layer."""
        module = self.network.get_submodule(layer)
        assert isinstance(module, LoraLinear)  # noqa: S101  # the layers are listed by their factors
        return module.scale

    @property
    def new_device_uses(self) -> NewDeviceUses:
        """Return whether new devices take steps on labels."""
        return "labels" if self.settings.new_devices == "steps" else "nothing"

    def enrol(self, samples: Tensor, labels: Tensor) -> State:
        """Return the number of samples."""
        return {"samples": torch.tensor(len(labels))}

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return freshly drawn factors and head, who enrolled with how many samples, and the backbone's digest."""
        drawn = self.draw_adapter(seed)
        known = {ENROLLED + device: told["samples"] for device, told in sorted((enrolled or {}).items())}
        return drawn | known | {DIGEST: self.digest}

    def draw_adapter(self, seed: int) -> State:
        """Return freshly drawn factors and head by name: every B is zero."""
        drawn = self.draw_weights(seed)
        return {name: drawn[name] for name in self.trained_names}

    def trained_now(self, server: State) -> tuple[str, ...]:
        """Return the tensors that this round trains; all unless a method says otherwise."""
        return self.trained_names

    def start_of(self, server: State, device: str) -> State:
        """Return what a device starts from and classifies with before any step: factors, head, changes of frozen weights."""
        return {name: tensor for name, tensor in server.items() if name in self.trained_names or name.startswith(CHANGE)}

    def start_for(self, server: State, view: DeviceView) -> State:
        """Return the same for a device whose samples may be looked at."""
        return self.start_of(server, view.device)

    def downlink(self, server: State, device: str) -> State:
        """Return what this round trains, and changes of frozen weights."""
        return self._sent(server, self.start_of(server, device))

    def _sent(self, server: State, start: State) -> State:
        """Return the part of a start that travels."""
        now = self.trained_now(server)
        return {name: tensor for name, tensor in start.items() if name in now or name.startswith(CHANGE)}

    def private_state(self, server: State, device: str) -> State:
        """Return a momentum of zeros: it is the same at the start of every round."""
        return self._slots(self.downlink(server, device))

    def _slots(self, sent: State) -> State:
        """Return the optimiser's slots for what a device was sent."""
        return Sgd(self.settings.momentum).slots(without(sent, CHANGE))

    def context(self, server: State) -> Context:
        """Return the learning rate, and factors that this round does not train."""
        resting = {name: server[name] for name in self.trained_names if name in server and name not in self.trained_now(server)}
        return {**super().context(server), **prefixed(FROZEN, resting)}

    def phases(self) -> tuple[Phase, ...]:
        """Return the one phase: local SGD."""
        return (self.train_phase(self.step),)

    def step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step of SGD with momentum on the cross-entropy, the joint gradient clipped."""
        trained, change = without(state, MOMENTUM, CHANGE), prefixed(CHANGE, part_of(state, CHANGE))
        fixed = {**part_of(context, FROZEN), **change}

        def loss(weights: State) -> Tensor:
            return self.loss(self.weights_of(weights | fixed), batch)

        slots = {name: tensor for name, tensor in state.items() if name.startswith(MOMENTUM)}
        rule = Descent(Sgd(self.settings.momentum), context["learning_rate"], self.training.clip_norm)
        after, kept, value = rule.step(loss, trained, slots)
        return {**after, **change, **kept}, {"loss": value}

    def weights_of(self, adapter: State) -> State:
        """Return the network's weights under factors, head and changes: what is not among them is the backbone's."""
        changes = part_of(adapter, CHANGE)
        frozen = dict(self.network.named_parameters()) if changes else {}
        return without(adapter, CHANGE) | {name: frozen[name] + change for name, change in changes.items()}

    def upload(self, end: State, context: Context) -> State:
        """Return what was trained."""
        return without(end, MOMENTUM, CHANGE)

    def predictor(self, server: State, view: DeviceView) -> Predictor:
        """Return the classifier of a device: a participant's after its steps, a new device's as it is sent."""
        self.check_backbone(server)
        start = self.start_for(server, view)
        takes_steps = ENROLLED + view.device in server or self.settings.new_devices == "steps"
        return self.predictor_of(self.weights_of(self.after_steps(server, view, start) if takes_steps else start))

    def after_steps(self, server: State, view: DeviceView, start: State) -> State:
        """Return factors, head and changes after a device's personal steps; the start where it has no labels."""
        steps = self.settings.personal_steps or self.settings.local_steps
        phase = self.repeat("personal_steps", self.step, UniformBatches(self.settings.batch_size), steps)
        sent = self._sent(server, start)
        after = self.adaptation.adapt(phase, {**sent, **self._slots(sent)}, view, self.context(server))
        return start | without(after, MOMENTUM)

    def check_backbone(self, server: State) -> None:
        """Refuse a state that was trained on another backbone."""
        if not torch.equal(server[DIGEST].cpu(), self.digest):
            hint = f"restore {self.settings.backbone or 'the version that made the run'}"
            raise RunFolderError("the backbone is not the one that the run was trained on", hint=hint)

    def global_weights(self, server: State) -> State:
        """Return the weights of one model for everybody."""
        return self.weights_of(self.start_of(server, ""))

    def parts(self, server: State) -> tuple[Part, ...]:
        """Return the classifier with everything folded into plain weights."""
        self.check_backbone(server)
        return (self.classify_part(self.plain_network(self.global_weights(server))),)

    def plain_network(self, weights: State) -> nn.Sequential:
        """Return the network without factors that computes what the adapted one does under these weights."""
        adapted = self.network_with(weights)
        plain = build_model(self.training.model, self.task.sample_shape, len(self.task.classes)).to(self.dtype)
        plain.load_state_dict(merged(adapted[1]))
        return nn.Sequential(adapted[0], plain.requires_grad_(requires_grad=False))

    def trained_part(self) -> Part | None:
        """Return the network with a device's own factors and head."""
        own = {f"state.{name}": each for name, each in self.network.named_parameters() if name in self.trained_names}
        inputs = [PartTensor(name, "float32", tuple(each.shape), "weight after local steps", -0.1, 0.1) for name, each in own.items()]
        logits = PartTensor("logits", "float32", ("batch", len(self.task.classes)), "class scores before the softmax")

        def classify(samples: Tensor, state: Mapping[str, Tensor]) -> Tensor:
            return self.logits(part_of(state, "state."), samples)

        return Part(TRAINED, classify, (self.task.samples_tensor(), *inputs), (logits,), gathered=len(inputs))

    def sizes(self, server: State) -> dict[str, int]:
        """Return what travels in a round at most, and the weights that classify."""
        sent = self.downlink(server, "")
        own = sum(parameter.numel() for parameter in self.network.parameters())
        return {"parameters": sum(tensor.numel() for tensor in sent.values()), "classifier_parameters": own}


def head_of(network: nn.Module) -> str:
    """Return the name of a network's last layer.

    Raises:
        InputError: It is not linear.
    """
    name = [name for name, _ in network.named_parameters()][-1].rpartition(".")[0]
    if not isinstance(network.get_submodule(name), nn.Linear) or not name:
        raise InputError("the model does not end in a named linear layer", expected="a head that trains whole", got=name or "no name")
    return name


def _backbone_weights(plain: nn.Module, path: str, head: str) -> State:
    """Return the weights of a backbone without its head: those of a file, or the drawn ones."""
    if path:
        load_weights(plain, read_weights(Path(path)), head)
    return {name: each.detach().clone() for name, each in plain.named_parameters() if not name.startswith(f"{head}.")}


def _digest(weights: State) -> Tensor:
    """Return the SHA-256 of tensors by name, (32,) uint8."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
