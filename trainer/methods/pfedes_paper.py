"""pFedES as published: a tiny shape-preserving proxy in front of each device's network (Yi et al., AAAI 2025, equations 4 to 11).

Phase 1 freezes the proxy G and trains the network F on mu * CE(F(G(x))) + (1 - mu) * CE(F(x)); phase 2 freezes F and trains G on
CE(F(G(x))). Only G travels; a device predicts with F alone. Equation 11 divides by the samples of all clients, which would shrink G
where few are selected: we divide by those of the selected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from trainer.aggregation import weighted_mean
from trainer.methods.base import Batch, Context, Metrics, Phase, Repeat, State, Task, Updates
from trainer.methods.checks import check_at_least, check_between, check_positive
from trainer.methods.proxy_method import PROXY, ProxyMethod
from trainer.methods.unlike_method import LOCAL, UnlikeTraining
from trainer.models.proxies import ShapePreservingProxy
from trainer.optimisation import cross_entropy


@dataclass(frozen=True)
class PFedESPaper(UnlikeTraining):
    """Settings of pFedES as published.

    Attributes:
        mu: Weight of the changed samples in phase 1, above 0 and at most 0.5.
        proxy_hidden: Channels, or units, between the proxy's two layers.
        proxy_rate: Rate of the proxy's SGD.
        proxy_epochs: Its passes over the local data in a round (E_fe).
    """

    name: ClassVar[str] = "pfedes-paper"

    mu: float = 0.5
    proxy_hidden: int = 8
    proxy_rate: float = 0.03
    proxy_epochs: int = 2

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        super().__post_init__()
        check_between("mu", self.mu, 1e-9, 0.5)
        check_at_least("proxy_hidden", self.proxy_hidden, 1)
        check_at_least("proxy_epochs", self.proxy_epochs, 1)
        check_positive("proxy_rate", self.proxy_rate)

    def bind(self, task: Task, dtype: torch.dtype = torch.float32) -> PFedESPaperMethod:
        """Return the method for this task."""
        return PFedESPaperMethod(self, task, dtype)


class PFedESPaperMethod(ProxyMethod):
    """pFedES as published, bound to a task."""

    def __init__(self, settings: PFedESPaper, task: Task, dtype: torch.dtype) -> None:
        self.settings = settings
        super().__init__(settings, task, dtype)

    def new_proxy(self) -> nn.Module:
        """Return the network that changes samples."""
        return ShapePreservingProxy(self.task.sample_shape, self.settings.proxy_hidden)

    def context(self, server: State) -> Context:
        """Return both rates, scalars."""
        return {**super().context(server), "proxy_rate": torch.tensor(self.settings.proxy_rate, dtype=self.dtype)}

    def phases(self) -> tuple[Phase, ...]:
        """Return both phases."""
        draw = self.training.draw(epochs=self.settings.proxy_epochs)
        return (self.train_phase(), Repeat("train_proxy", self.proxy_step, draw, None))

    def local_loss(self, weights: State, state: State, batch: Batch, context: Context) -> Tensor:
        """Return mu * CE(F(G(x))) + (1 - mu) * CE(F(x)), a scalar (equations 4 to 6)."""
        labels, own = batch["labels"], batch.get("weights")
        changed = self.outputs_of(weights, self.proxy_outputs(state, batch["samples"]).detach())[1]  # (B, C)
        plain = self.local_outputs(weights, batch["samples"])[1]  # (B, C)
        return self.settings.mu * cross_entropy(changed, labels, own) + (1 - self.settings.mu) * cross_entropy(plain, labels, own)

    def proxy_step(self, state: State, batch: Batch, context: Context) -> tuple[State, Metrics]:
        """Return the state after one step of the proxy through the frozen network (equations 8 to 10)."""
        weights = {name: tensor for name, tensor in state.items() if name.startswith(LOCAL)}

        def loss(proxy: State) -> Tensor:
            logits = self.outputs_of(weights, self.proxy_outputs(proxy, batch["samples"]))[1]  # (B, C)
            return cross_entropy(logits, batch["labels"], batch.get("weights"))

        moved = self.descend(loss, state, PROXY, context["proxy_rate"])
        return state | moved.state, {"loss": moved.loss}

    def aggregate(self, server: State, updates: Updates) -> State:
        """Return the mean of the selected clients' proxies, weighted by their sample counts (equation 11)."""
        return server | weighted_mean(updates)
