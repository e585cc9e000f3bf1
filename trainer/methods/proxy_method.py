"""What methods share whose devices train a small proxy beside their own network, and send it in the network's place."""

from __future__ import annotations

from abc import abstractmethod
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
    """A method whose proxy goes down, is trained and goes up; a subclass says what the proxy is.

    Args:
        settings: Local training.
        task: What there is to classify.
        dtype: What is computed in.
    """

    def __init__(self, settings: UnlikeTraining, task: Task, dtype: torch.dtype) -> None:
        super().__init__(settings, task, dtype)
        self.proxy = self._draw_proxy(0)

    @abstractmethod
    def new_proxy(self) -> nn.Module:
        """Return a proxy drawn from torch's random state."""

    def _draw_proxy(self, seed: int) -> nn.Module:
        """Return the proxy, drawn from a seed; the caller's random state is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.new_proxy().to(self.dtype)

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

    def proxy_outputs(self, weights: Mapping[str, Tensor], samples: Tensor, prefix: str = PROXY) -> Tensor:
        """Return what the proxy whose weights stand under a prefix makes of raw samples (B, *shape)."""
        outputs: Tensor = functional_call(self.proxy, part_of(weights, prefix), (self.normalise(samples),))
        return outputs


class ClassifyingProxyMethod(ProxyMethod):
    """A method whose proxy is a classifier by itself.

    Args:
        settings: Local training.
        proxy: The proxy's model, by a name of ``trainer.models.registry``.
        task: What there is to classify.
        dtype: What is computed in.
    """

    def __init__(self, settings: UnlikeTraining, proxy: str, task: Task, dtype: torch.dtype) -> None:
        self._proxy_name = proxy
        super().__init__(settings, task, dtype)

    def new_proxy(self) -> nn.Module:
        """Return the classifier."""
        return build_model(self._proxy_name, self.task.sample_shape, len(self.task.classes))
