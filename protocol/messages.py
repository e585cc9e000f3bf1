"""Every message that crosses the wire. Arrays travel in the tensor body, the rest in the header."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from protocol.errors import (
    MalformedMessageError,
    PrototypeClassError,
    PrototypeCountError,
    PrototypeDimensionError,
    PrototypeError,
    PrototypeNotFiniteError,
)
from protocol.schema import JsonValue, SchemaError, decode, encode
from protocol.tensors import Array

MAXIMUM_COUNT = 10**7  # of one class on one device
MAXIMUM_DEVICES = 10**6
MAXIMUM_FEATURE = 1e6


@dataclass(frozen=True, eq=False)
class PrototypeUpdate:
    """One device's class prototypes.

    Attributes:
        round: Round number.
        classes: Class indices, (P,) int64.
        means: Prototypes, (P, D) float32.
        counts: Samples of each class, (P,) int64.
    """

    KIND: ClassVar[str] = "prototype-update/1"

    round: int
    classes: NDArray[np.int64]
    means: NDArray[np.float32]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Refuse a round that cannot be."""
        _require(self.round >= 0, "a round number is negative", self.round)


@dataclass(frozen=True, eq=False)
class GlobalPrototypes:
    """The federation's class prototypes.

    Attributes:
        round: Round number.
        classes: Class indices, (P,) int64; a class nobody holds is absent.
        means: Prototypes, (P, D) float32.
        counts: Samples of each class over all devices, (P,) int64.
        device_count: Devices that are counted.
    """

    KIND: ClassVar[str] = "global-prototypes/1"

    round: int
    classes: NDArray[np.int64]
    means: NDArray[np.float32]
    counts: NDArray[np.int64]
    device_count: int

    def __post_init__(self) -> None:
        """Refuse figures that cannot be."""
        _require(self.round >= 0, "a round number is negative", self.round)
        _require(1 <= self.device_count <= MAXIMUM_DEVICES, "a number of devices is impossible", self.device_count)


@dataclass(frozen=True)
class Receipt:
    """The coordinator's answer to one message.

    Attributes:
        device: Device that sent the message; a receipt of another device proves nothing.
        boot: Boot counter of the message that is answered.
        sequence: Its sequence number.
        accepted: Whether it counts.
        reason: Why not, in one sentence; empty when accepted.
    """

    KIND: ClassVar[str] = "receipt/1"

    device: str
    boot: int
    sequence: int
    accepted: bool
    reason: str


@dataclass(frozen=True)
class EvaluationReport:
    """What a device found out about its classifiers; each accuracy from 0 to 1, or None when it has no labels.

    Attributes:
        round: Round number.
        samples: Query samples that were classified.
        tailored_accuracy: Accuracy of the tailored classifier.
        nearest_prototype_accuracy: Accuracy of the nearest global prototype.
    """

    KIND: ClassVar[str] = "evaluation-report/1"

    round: int
    samples: int
    tailored_accuracy: float | None
    nearest_prototype_accuracy: float | None

    def __post_init__(self) -> None:
        """Refuse figures that cannot be."""
        _require(self.round >= 0, "a round number is negative", self.round)
        _require(self.samples >= 0, "a number of samples is negative", self.samples)
        for accuracy in (self.tailored_accuracy, self.nearest_prototype_accuracy):
            _require(accuracy is None or 0.0 <= accuracy <= 1.0, "an accuracy is not between 0 and 1", accuracy)


def _require(holds: bool, what: str, got: object) -> None:
    """Refuse a message's field."""
    if not holds:
        raise MalformedMessageError(what, got=got)


Message: TypeAlias = PrototypeUpdate | GlobalPrototypes | Receipt | EvaluationReport
KINDS: Mapping[str, type[Message]] = {kind.KIND: kind for kind in typing.get_args(Message)}
ARRAY_DTYPES = {"classes": np.dtype(np.int64), "means": np.dtype(np.float32), "counts": np.dtype(np.int64)}


def split_message(message: Message) -> tuple[dict[str, JsonValue], dict[str, Array]]:
    """Return a message's plain fields and its arrays."""
    values = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    arrays = {name: value for name, value in values.items() if name in ARRAY_DTYPES}
    return {name: encode(value) for name, value in values.items() if name not in ARRAY_DTYPES}, arrays


def join_message(kind: str, plain: Mapping[str, JsonValue], arrays: Mapping[str, Array]) -> Message:
    """Return the message of a kind from its plain fields and its arrays.

    Raises:
        MalformedMessageError: An unknown kind, or fields that do not belong to it.
    """
    if kind not in KINDS:
        raise MalformedMessageError("a message is of an unknown kind", expected=" or ".join(KINDS), got=repr(kind[:80]))
    message = KINDS[kind]
    names = [field.name for field in dataclasses.fields(message)]
    wanted = {name for name in names if name in ARRAY_DTYPES}
    if arrays.keys() != wanted:
        raise MalformedMessageError(f"a {kind} carries the wrong tensors", expected=sorted(wanted), got=sorted(arrays))
    for name in wanted:
        if arrays[name].dtype != ARRAY_DTYPES[name]:
            raise MalformedMessageError(f"{name} of a {kind} has the wrong dtype", expected=ARRAY_DTYPES[name], got=arrays[name].dtype)
    hints = typing.get_type_hints(message)
    plain_kind = dataclasses.make_dataclass("plain", [(name, hints[name]) for name in names if name not in wanted], frozen=True)
    try:
        fields: Any = decode(plain_kind, dict(plain), kind)
    except SchemaError as fault:
        raise MalformedMessageError(f"a message is malformed at {fault.where}", expected=fault.expected, got=fault.got) from fault
    values: dict[str, Any] = dict(arrays) | {name: getattr(fields, name) for name in names if name not in wanted}
    return message(**values)  # every name and type was checked above


def check_prototypes(message: PrototypeUpdate | GlobalPrototypes, class_count: int, dimension: int) -> None:
    """Refuse prototypes that do not fit a bundle or cannot be true.

    Args:
        message: What came; see its attributes for shapes.
        class_count: Classes C that the bundle knows.
        dimension: Feature dimension D of the bundle.

    Raises:
        PrototypeError: No class at all, or arrays that do not belong together.
        PrototypeDimensionError: Another feature dimension.
        PrototypeClassError: A class outside 0..C-1, or one twice.
        PrototypeCountError: A count below 1 or beyond belief.
        PrototypeNotFiniteError: NaN, infinity, or absurdly large features.
    """
    classes, means, counts = message.classes, message.means, message.counts
    if classes.ndim != 1 or counts.shape != classes.shape or means.ndim != 2 or len(means) != len(classes) or len(classes) == 0:
        raise PrototypeError(
            "prototypes do not belong together",
            expected="(P,) classes, (P, D) means, (P,) counts, P at least 1",
            got=f"{classes.shape}, {means.shape}, {counts.shape}",
        )
    if means.shape[1] != dimension:
        raise PrototypeDimensionError(
            "a prototype has the wrong dimension", expected=dimension, got=means.shape[1], hint="use the same bundle"
        )
    if classes.min() < 0 or classes.max() >= class_count or len(np.unique(classes)) != len(classes):
        raise PrototypeClassError("a prototype's class is unknown or repeated", expected=f"each of 0 to {class_count - 1} at most once")
    most = MAXIMUM_COUNT * (message.device_count if isinstance(message, GlobalPrototypes) else 1)
    if counts.min() < 1 or counts.max() > most:
        raise PrototypeCountError("a prototype's count is impossible", expected=f"1 to {most}", got=f"{counts.min()} to {counts.max()}")
    with np.errstate(invalid="ignore"):
        if not (np.abs(means) <= MAXIMUM_FEATURE).all():
            raise PrototypeNotFiniteError("a prototype is not finite", expected=f"numbers up to {MAXIMUM_FEATURE:g}", got="NaN or larger")
