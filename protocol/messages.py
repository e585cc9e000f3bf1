"""Every message that crosses the wire. Arrays travel in the tensor body, the rest in the header."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from protocol.errors import MalformedMessageError
from protocol.flat_tree import flatten_tree, unflatten_tree
from protocol.fleet_messages import ChannelHead, EvaluationReport, Presence, Receipt
from protocol.message_checks import NotFiniteMessageError, ReasonCode
from protocol.prototype_messages import GlobalPrototypes, PrototypeUpdate, check_prototypes
from protocol.round_messages import ParameterUpdate, RoundResult, RoundTask
from protocol.schema import JsonValue, SchemaError, decode, encode
from protocol.tensors import Array
from protocol.transfer_messages import Cancel, Done, Fail, Offer, TransferMessage, Want

__all__ = [
    "KINDS",
    "Cancel",
    "ChannelHead",
    "Done",
    "EvaluationReport",
    "Fail",
    "GlobalPrototypes",
    "Message",
    "NotFiniteMessageError",
    "Offer",
    "ParameterUpdate",
    "Presence",
    "PrototypeUpdate",
    "ReasonCode",
    "Receipt",
    "RoundResult",
    "RoundTask",
    "TransferMessage",
    "Want",
    "check_prototypes",
    "join_message",
    "split_message",
]

Message: TypeAlias = (
    PrototypeUpdate
    | GlobalPrototypes
    | ParameterUpdate
    | RoundTask
    | RoundResult
    | Receipt
    | EvaluationReport
    | Presence
    | ChannelHead
    | Offer
    | Want
    | Done
    | Fail
    | Cancel
)
KINDS: Mapping[str, type[Message]] = {kind.KIND: kind for kind in typing.get_args(Message)}
# Fields that are one array each, and the field that is a tree of them, see protocol.flat_tree: a message has the ones or the other.
ARRAY_DTYPES: Mapping[str, np.dtype[Any]] = {
    "classes": np.dtype(np.int64),
    "means": np.dtype(np.float32),
    "counts": np.dtype(np.int64),
    "groups": np.dtype(np.uint8),
}
TREE = "tensors"
SHAPES = "shapes"  # what stands in the header for a tree


def split_message(message: Message) -> tuple[dict[str, JsonValue], dict[str, Array]]:
    """Return a message's plain fields and its arrays; what is as by default stays away, and so does an array without entries.

    Raises:
        MalformedMessageError: A tree of several dtypes.
    """
    plain, arrays = dict[str, JsonValue](), dict[str, Array]()
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if field.name == TREE:
            plain[SHAPES], arrays = flatten_tree(value)
        elif field.name not in ARRAY_DTYPES:
            plain |= {field.name: encode(value)} if value is None or value != field.default else {}
        elif field.name != "groups" or value.size > 0:
            arrays[field.name] = value
    return plain, arrays


def join_message(kind: str, plain: Mapping[str, JsonValue], arrays: Mapping[str, Array]) -> Message:
    """Return the message of a kind from its plain fields and its arrays.

    Raises:
        MalformedMessageError: An unknown kind, or fields that do not belong to it.
    """
    if kind not in KINDS:
        raise MalformedMessageError("a message is of an unknown kind", expected=" or ".join(KINDS), got=repr(kind[:80]))
    message = KINDS[kind]
    try:
        fields: Any = dict(vars(decode(_plain_part(kind), dict(plain), kind)))
    except SchemaError as fault:
        raise MalformedMessageError(f"a message is malformed at {fault.where}", expected=fault.expected, got=fault.got) from fault
    if SHAPES in fields:
        fields[TREE] = unflatten_tree(fields.pop(SHAPES), arrays)
    else:
        fields |= _named_arrays(kind, {field.name for field in dataclasses.fields(message)}, arrays)
    return message(**fields)  # every name and type was checked above


def _named_arrays(kind: str, names: set[str], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of a message that names each of them."""
    wanted = names & ARRAY_DTYPES.keys()
    optional = wanted & {"groups"}
    if not wanted - optional <= arrays.keys() <= wanted:
        raise MalformedMessageError(f"a {kind} carries the wrong tensors", expected=sorted(wanted), got=sorted(arrays)[:20])
    for name, array in arrays.items():
        if array.dtype != ARRAY_DTYPES[name]:
            raise MalformedMessageError(f"{name} of a {kind} has the wrong dtype", expected=ARRAY_DTYPES[name], got=array.dtype)
    return dict(arrays)


@functools.cache
def _plain_part(kind: str) -> type[Any]:
    """Return a dataclass of the plain fields of a kind of message."""
    hints = typing.get_type_hints(KINDS[kind])
    plain = [field for field in dataclasses.fields(KINDS[kind]) if field.name not in ARRAY_DTYPES and field.name != TREE]
    required: list[tuple[str, Any]] = [(field.name, hints[field.name]) for field in plain if field.default is dataclasses.MISSING]
    required += [(SHAPES, Mapping[str, tuple[int, ...]])] if TREE in hints else []
    optional = [(field.name, hints[field.name], field.default) for field in plain if field.default is not dataclasses.MISSING]
    return dataclasses.make_dataclass("plain", [*required, *optional], frozen=True)
