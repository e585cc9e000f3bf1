"""The messages of a round of training on devices: the task, the update that answers it, the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from protocol.message_checks import require, require_count, require_digest, require_figures, require_time
from protocol.tensor_encodings import Encoding, Tree, check_tree, decode_tree, encode_tree
from protocol.tensors import Array

Payload: TypeAlias = Literal["parameters", "lora", "proxy", "prototypes"]
MAXIMUM_SAMPLES = 10**9
MAXIMUM_DEVICES = 10**6
MAXIMUM_STATE_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class ParameterUpdate:
    """What one device's training made of a state: full parameters, LoRA factors or a proxy, as a named tree.

    Attributes:
        round: Round number.
        base: SHA-256 of the encoded state that the training started from.
        sample_count: Samples that it used.
        encoding: How ``tensors`` are written, see protocol.tensor_encodings.
        metrics: Figures such as the loss, at most 32.
        tensors: The tree as it travels; ``values`` gives float32.
        payload: What the tree is.
    """

    KIND: ClassVar[str] = "parameter-update/1"

    round: int
    base: str
    sample_count: int
    encoding: Encoding
    metrics: Mapping[str, float]
    tensors: Mapping[str, Array]
    payload: Payload = "parameters"

    def __post_init__(self) -> None:
        """Refuse an update that cannot be: nothing of it is used."""
        require_count("round number", self.round)
        require_digest("base of an update", self.base)
        require_count("number of samples", self.sample_count, 1, MAXIMUM_SAMPLES)
        require_figures("metrics", self.metrics)
        check_tree(self.tensors, self.encoding)

    def encoded(self, encoding: Encoding) -> ParameterUpdate:
        """Return the update with its tree written in another encoding.

        Raises:
            InputError: The encoding cannot hold a number of the tree.
        """
        return dataclasses.replace(self, encoding=encoding, tensors=encode_tree(self.values(), encoding))

    def values(self) -> Tree:
        """Return the tree as float32."""
        return decode_tree(self.tensors, self.encoding)


@dataclass(frozen=True)
class RoundTask:
    """What the coordinator asks one device to do.

    Attributes:
        round: Round number.
        attempt: Which time this device is asked for the round, from 0.
        deadline: Seconds since 1970, UTC; an update that comes later is refused.
        state: SHA-256 of the encoded state to start from, under which it can be fetched.
        state_bytes: Its size.
        seed: Seed of every random draw.
        payload: What the update shall hold.
        scalars: Scalars of the step's context, such as ``learning_rate``, at most 32.
        encoding: How the update's tree shall be written.
    """

    KIND: ClassVar[str] = "round-task/1"

    round: int
    attempt: int
    deadline: float
    state: str
    state_bytes: int
    seed: int
    payload: Payload
    scalars: Mapping[str, float]
    encoding: Encoding

    def __post_init__(self) -> None:
        """Refuse a task that cannot be."""
        require_count("round number", self.round)
        require_count("number of the attempt", self.attempt, 0, 10**6)
        require_time("deadline", self.deadline)
        require_digest("state of a round", self.state)
        require_count("size of a state", self.state_bytes, 1, MAXIMUM_STATE_BYTES)
        require_count("seed", self.seed)
        require_figures("scalars", self.scalars)


@dataclass(frozen=True)
class RoundResult:
    """What a round came to, retained for all devices.

    Attributes:
        round: Round number.
        state: SHA-256 of the encoded new state, under which it can be fetched.
        state_bytes: Its size.
        devices: Devices whose updates count.
    """

    KIND: ClassVar[str] = "round-result/1"

    round: int
    state: str
    state_bytes: int
    devices: int

    def __post_init__(self) -> None:
        """Refuse a result that cannot be."""
        require_count("round number", self.round)
        require_digest("state of a round", self.state)
        require_count("size of a state", self.state_bytes, 1, MAXIMUM_STATE_BYTES)
        require(0 <= self.devices <= MAXIMUM_DEVICES, "a number of devices is impossible", self.devices)
