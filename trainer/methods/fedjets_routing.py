"""What FedJets routes with: features of the common expert, anchor clients, and the classifier that a device runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from protocol.errors import InputError
from trainer.methods.base import State


def head_of(weights: Mapping[str, Tensor], classes: int) -> str:
    """Return the name of a classifier's last layer.

    Raises:
        InputError: It is no linear layer with an output for each class.
    """
    last = list(weights)[-1].rpartition(".")[0]
    weight = weights.get(f"{last}.weight")
    if weight is None or weight.dim() != 2 or len(weight) != classes:
        raise InputError(
            "fedjets needs features", expected="a classifier that ends in a linear layer", got=last, hint="choose another model"
        )
    return last


def without_head(weights: Mapping[str, Tensor], head: str) -> State:
    """Return a classifier's weights with the identity as its last layer: its outputs are then that layer's inputs."""
    weight = weights[f"{head}.weight"]  # (C, D)
    identity = {f"{head}.weight": torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)}  # (D, D)
    if f"{head}.bias" in weights:
        identity[f"{head}.bias"] = torch.zeros_like(weight[0])  # (D,)
    return {**weights, **identity}


def draw_gate(features: int, experts: int, seed: int, dtype: torch.dtype) -> State:
    """Return weight (M, D) and bias (M,) of a freshly drawn gate."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        gate = nn.Linear(features, experts).to(dtype)
    return {"weight": gate.weight.detach(), "bias": gate.bias.detach()}


def gate_scores(gate: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Return the scores (B, M) of the experts for features (B, D), which are brought to zero mean and unit variance first."""
    return layer_norm(features, features.shape[1:]) @ gate["weight"].T + gate["bias"]  # (B, M)


def mixture(logits: Tensor, scores: Tensor, choice: Tensor) -> Tensor:
    """Return log-probabilities (B, C) of the mixture of K experts that the gate weighs sample by sample.

    Args:
        logits: Of the K experts, (K, B, C).
        scores: Of all M experts, (B, M).
        choice: Which of the M the K are, (K,) int64.
    """
    shares = torch.log_softmax(scores.gather(1, choice.expand(len(scores), -1)), dim=1)  # (B, K)
    return torch.logsumexp(torch.log_softmax(logits, dim=2) + shares.T.unsqueeze(2), dim=0)  # (B, C)


def choose_anchors(counts: Mapping[str, Tensor], experts: int, dtype: torch.dtype) -> State:
    """Return the anchor clients and their experts, (M,) one-hot each: clients whose class mixes are far apart.

    The first is the one farthest from the mean mix; each next is the one farthest from its nearest anchor; among equals
    the lower device id. With fewer clients than experts the other experts have no anchor.

    Args:
        counts: Samples of each class, (C,), by device id.
        experts: Number of experts M.
        dtype: Of the result.
    """
    devices = sorted(counts)
    if not devices:
        return {}
    mixes = torch.stack([counts[device].to(torch.float64) / counts[device].sum() for device in devices])  # (N, C)
    chosen = [int((mixes - mixes.mean(dim=0)).abs().sum(dim=1).argmax())]
    while len(chosen) < min(experts, len(devices)):
        distances = (mixes.unsqueeze(1) - mixes[chosen]).abs().sum(dim=2).amin(dim=1)  # (N,)
        distances[chosen] = -1.0  # equal mixes are at distance 0, and nobody is an anchor twice
        chosen.append(int(distances.argmax()))
    return {devices[place]: torch.eye(experts, dtype=dtype)[expert] for expert, place in enumerate(chosen)}


class RoutedExperts(nn.Module):
    """Raw samples -> logits of the expert that the gate puts first, sample by sample.

    Args:
        common: Raw samples -> features (B, D).
        gate: Weight (M, D) and bias (M,) of the gate.
        experts: Raw samples -> logits (B, C), M of them.
    """

    gate_weight: Tensor
    gate_bias: Tensor

    def __init__(self, common: nn.Module, gate: Mapping[str, Tensor], experts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.common = common
        self.experts = nn.ModuleList(experts)
        self.register_buffer("gate_weight", gate["weight"])
        self.register_buffer("gate_bias", gate["bias"])

    def forward(self, samples: Tensor) -> Tensor:
        """Return logits (B, C) of raw samples (B, *shape)."""
        first = gate_scores({"weight": self.gate_weight, "bias": self.gate_bias}, self.common(samples)).argmax(dim=1)  # (B,)
        logits = torch.stack([expert(samples) for expert in self.experts], dim=1)  # (B, M, C)
        return logits.gather(1, first.view(-1, 1, 1).expand(-1, 1, logits.shape[2])).squeeze(1)  # (B, C)
