"""HetLoRA: devices of different ranks (Cho et al., EMNLP 2024, arXiv 2401.06432).

A device is sent the first rows of A and columns of B that it has room for. What comes back is padded with zeros and averaged by
the norms of the products, so that who moved more weighs more; the head by sample counts. The paper's pruning of ranks during
training is not here: ranks are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from protocol.errors import InputError
from trainer.aggregation import weighted_mean
from trainer.factors.hetlora import hetlora, product_norms
from trainer.factors.product import padded
from trainer.lora import FACTOR_A, FACTOR_B
from trainer.methods.base import State, Task, Updates
from trainer.methods.lora_aggregation import named, pairs_of
from trainer.methods.lora_method import ENROLLED, LoraMethod, LoraTraining


@dataclass(frozen=True)
class HetLoRA(LoraTraining):
    """Settings of HetLoRA: those of local adaptation.

    Attributes:
        rank_shares: Shares of the patterns' ranks that devices have, in turn through the participants in order of their ids.
    """

    name: ClassVar[str] = "hetlora"

    rank_shares: tuple[float, ...] = (1.0, 0.5)

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        if not self.rank_shares or not all(0 < share <= 1 for share in self.rank_shares):
            raise InputError("setting rank_shares is out of range", expected="numbers above 0, up to 1", got=self.rank_shares)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> HetLoRAMethod:
        """Return the method for this task."""
        return HetLoRAMethod(self, task, dtype)


class HetLoRAMethod(LoraMethod):
    """HetLoRA bound to a task."""

    def __init__(self, settings: HetLoRA, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.rank_shares = settings.rank_shares

    def start_of(self, server: State, device: str) -> State:
        """Return factors cut to the device's ranks; whole ones for a device that never enrolled."""
        whole = super().start_of(server, device)
        devices = sorted(name for name in server if name.startswith(ENROLLED))
        if ENROLLED + device not in server:
            return whole
        share = self.rank_shares[devices.index(ENROLLED + device) % len(self.rank_shares)]
        return {name: _cut(name, tensor, share) for name, tensor in whole.items()}

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return padded means weighted by the products' norms, and the head's mean."""
        pairs = {layer: pairs_of(updates, layer) for layer in self.layers}
        norms = product_norms(list(zip(*pairs.values(), strict=True)))  # (M,)
        weights = norms if norms.sum() > 0 else updates.sample_counts
        after = {**server, **weighted_mean(updates, self.head_names)}
        for layer, own in pairs.items():
            rank = len(server[f"{layer}.{FACTOR_A}"])  # those with the whole rank may not be in the round
            after |= named(layer, padded(hetlora(own, weights), rank), self.dtype)
        return after


def _cut(name: str, tensor: Tensor, share: float) -> Tensor:
    """Return the first rows of an A (R, I) or columns of a B (O, R), at least one; other tensors whole."""
    if name.endswith(FACTOR_A):
        return tensor[: max(1, round(share * tensor.shape[0]))]
    return tensor[:, : max(1, round(share * tensor.shape[1]))] if name.endswith(FACTOR_B) else tensor
