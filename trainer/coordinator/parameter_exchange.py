"""Rounds of training on devices: parameters go down and come up, and the method's own ``aggregate`` makes the next state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.errors import DivergenceError, InputError
from protocol.messages import Message, ParameterUpdate
from protocol.round_messages import Payload
from protocol.tensors import TensorLimits, decode_tensors, encode_tensors
from trainer.coordinator.admission import Claim, Verdict, change_norm, judge_numbers
from trainer.coordinator.journal import StoredUpdate
from trainer.coordinator.plan import RoundPlan
from trainer.methods.base import Method, State, Updates

STATE_LIMITS = TensorLimits(header_bytes=1 << 24, tensors=1 << 16, magnitude=None)  # files and rows of our own


class ParameterExchange:
    """The exchange of a method that devices train.

    Args:
        method: The method bound to its task.
        first: Server state before the first round.
        plan: How rounds are held; it bounds updates.
    """

    payload: Payload = "parameters"

    def __init__(self, method: Method, first: State, plan: RoundPlan) -> None:
        self.method = method
        self._first = encode_state(first)
        self._plan = plan
        self._measure = lru_cache(maxsize=8)(partial(_measure, method))  # the many updates of a round share one base

    def first_state(self) -> bytes:
        """Return the server state before the first round."""
        return self._first

    def downlink(self, state: bytes, device: str) -> bytes:
        """Return what the method sends down to a device."""
        server = _server_of(state)
        sent = self.method.downlink(server, device)
        return state if sent is server else encode_state(sent)

    def scalars(self, state: bytes) -> Mapping[str, float]:
        """Return the scalars of the method's context.

        Raises:
            InputError: The context holds more than scalars, which a task cannot carry.
        """
        context = self.method.context(_server_of(state))
        wide = [name for name, tensor in context.items() if tensor.numel() != 1]
        if wide:
            raise InputError("this method cannot be trained on devices", expected="a context of scalars", got=", ".join(sorted(wide)))
        return {name: float(tensor) for name, tensor in context.items()}

    def claim(self, device: str, message: Message) -> Claim | None:
        """Return what an update says about itself."""
        if not isinstance(message, ParameterUpdate) or message.payload != self.payload:
            return None
        return Claim(device, message.round, message.base, message.sample_count)

    def judge(self, message: Message, base: bytes) -> Verdict:
        """Say whether the tensors are those that the method sends up, finite, and near enough to where they began."""
        assert isinstance(message, ParameterUpdate)  # noqa: S101  # `claim` saw to it
        if message.sample_count > self._plan.most_samples:
            return Verdict("malformed", f"{message.sample_count} samples are claimed, at most {self._plan.most_samples} are believed")
        before, expected, norm = self._measure(base)
        return judge_numbers(message.values(), before, expected, self._plan.limit_of(norm))

    def store(self, message: Message) -> tuple[bytes, Mapping[str, float]]:
        """Return the tensors as float32, and the figures."""
        assert isinstance(message, ParameterUpdate)  # noqa: S101
        return encode_tensors(message.values()), message.metrics

    def aggregate(self, state: bytes, updates: Sequence[StoredUpdate], number: int) -> bytes:
        """Return what the method makes of the updates: the same call, in the same order, as in the simulator."""
        after = self.method.aggregate(decode_state(state), as_updates(updates))
        for name, tensor in after.items():
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                raise DivergenceError(
                    f"round {number} came to a state that is not finite at {name}", hint="lower learning_rate or clip_norm"
                )
        return encode_state(after)

    def announcement(self, state: bytes, number: int) -> Message | None:
        """Return nothing: devices fetch the state by its digest."""
        return None


@lru_cache(maxsize=2)
def _server_of(content: bytes) -> State:
    """Return the state in bytes, shared by all who only look at it."""
    return decode_state(content)


def _measure(method: Method, base: bytes) -> tuple[dict[str, NDArray[np.float32]], dict[str, tuple[int, ...]], float]:
    """Return the tensors of a base, the shapes of what goes up from it, and its norm."""
    state = decode_state(base)
    stacked = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
    up = method.upload(stacked, method.context(state))
    expected = {name: tuple(tensor.shape[1:]) for name, tensor in up.items()}
    before = {name: tensor.numpy() for name, tensor in state.items() if tensor.dtype == torch.float32}
    return before, expected, change_norm({name: before[name] for name in before.keys() & expected.keys()}, {})


def as_updates(updates: Sequence[StoredUpdate]) -> Updates:
    """Return stored updates as a method aggregates them, one chunk a device."""
    chunks = tuple({name: tensor.unsqueeze(0) for name, tensor in decode_state(update.content).items()} for update in updates)
    counts = torch.tensor([update.sample_count for update in updates], dtype=torch.int64)  # (M,)
    return Updates(tuple(update.device for update in updates), chunks, counts)


def encode_state(state: State) -> bytes:
    """Return a state as bytes."""
    return encode_tensors({name: tensor.detach().cpu().contiguous().numpy() for name, tensor in state.items()})


def decode_state(content: bytes) -> State:
    """Return the state in bytes."""
    return {name: torch.from_numpy(array) for name, array in decode_tensors(content, STATE_LIMITS).items()}
