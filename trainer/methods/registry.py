"""The methods by name: one line each."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from protocol.errors import InputError
from trainer.methods.base import MethodSettings
from trainer.methods.fedavg import FedAvg
from trainer.methods.hyperfedzero import HyperFedZero

METHODS: Mapping[str, type[Any]] = {
    FedAvg.name: FedAvg,
    HyperFedZero.name: HyperFedZero,
}


def method_settings(name: str, values: Mapping[str, Any]) -> MethodSettings:
    """Return the settings of a method from plain values, as ``config.json`` holds them; what is not named keeps its default.

    Raises:
        InputError: There is no such method, or a setting is unknown or of the wrong type.
    """
    if name not in METHODS:
        raise InputError("unknown method", expected=" or ".join(METHODS), got=name)
    settings: MethodSettings = _build(METHODS[name], values, name)
    return settings


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with changes put over them, nested settings name by name."""
    result = dict(values)
    for name, change in changes.items():
        before = result.get(name)
        result[name] = merged(before, change) if isinstance(before, Mapping) and isinstance(change, Mapping) else change
    return result


def settings_as_values(settings: MethodSettings) -> dict[str, Any]:
    """Return every setting as plain values, nested settings as dictionaries."""
    return dataclasses.asdict(typing.cast(Any, settings))


def _build(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """Return a settings dataclass from plain values."""
    hints = typing.get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise InputError(f"{where} has no setting {unknown[0]!r}", expected=" or ".join(fields))
    return kind(**{name: _convert(hints[name], value, f"{where}.{name}") for name, value in values.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Return one value in the type that its setting states."""
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return _build(typing.cast(type[Any], hint), value, where)
    if typing.get_origin(hint) is typing.Literal:
        if value in typing.get_args(hint):
            return value
        raise InputError(f"setting {where} is wrong", expected=" or ".join(typing.get_args(hint)), got=repr(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is hint:
        return value
    raise InputError(f"setting {where} has the wrong type", expected=hint.__name__, got=repr(value))
