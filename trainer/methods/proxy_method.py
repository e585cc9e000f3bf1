"""What methods share whose devices train a small proxy beside their own network, and send it in the network's place."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from trainer.methods.base import Context, State, Task
from trainer.methods.names import part_of, prefixed
from trainer.methods.unlike_method import UnlikeMethod, UnlikeTraining
from trainer.models.registry import build_model
from trainer.optimisers import MOMENTUM

PROXY = "proxy."


class ProxyMethod(UnlikeMethod):
    """A method with a proxy that classifies raw samples by itself.

    Args:
        settings: Local training.
        proxy: The proxy's model, by a name of ``trainer.models.registry``.
        task: What there is to classify.
        dtype: What is computed in.
    """

    def __init__(self, settings: UnlikeTraining, proxy: str, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self._proxy_name = proxy
        self.proxy = self._draw_proxy(0)

    def _draw_proxy(self, seed: int) -> nn.Module:
        """Return the proxy, drawn from a seed; the caller's random state is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build_model(self._proxy_name, self.task.sample_shape, len(self.task.classes)).to(self.dtype)

    def initial_state(self, seed: int, enrolled: Mapping[str, State] | None = None) -> State:
        """Return what each group begins with, and the global proxy."""
        drawn = {name: tensor.detach() for name, tensor in self._draw_proxy(seed).named_parameters()}
        return super().initial_state(seed, enrolled) | prefixed(PROXY, drawn)

    def shared(self, server: State, device: str) -> State:
        """Return the global proxy."""
        return prefixed(PROXY, part_of(server, PROXY))

    def private_state(self, server: State, device: str) -> State:
        """Return the group's common beginning, and no momentum for it nor for the proxy."""
        proxy = {name: tensor for name, tensor in server.items() if name.startswith(PROXY)}
        return super().private_state(server, device) | self.optimiser.slots(proxy)

    def keep(self, end: State, context: Context) -> State:
        """Return the device's own network; all momentum begins anew."""
        momentum = {name: tensor for name, tensor in end.items() if name.startswith(MOMENTUM + PROXY)}
        return super().keep(end, context) | self.still(momentum)

    def upload(self, end: State, context: Context) -> State:
        """Return the proxy."""
        return prefixed(PROXY, part_of(end, PROXY))

    def proxy_logits(self, weights: Mapping[str, Tensor], samples: Tensor, prefix: str = PROXY) -> Tensor:
        """Return logits (B, C) of raw samples (B, *shape) by the proxy whose weights stand under a prefix."""
        logits: Tensor = functional_call(self.proxy, part_of(weights, prefix), (self.normalise(samples),))
        return logits
