"""Settings dataclasses from plain values, as JSON and TOML hold them: unknown names and wrong types are refused."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

from protocol.errors import InputError


def build_settings(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    """Return a settings dataclass from plain values; what is not named keeps its default.

    Raises:
        InputError: A setting is unknown, missing or of the wrong type.
    """
    hints = typing.get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    unknown = sorted(set(values) - set(fields))
    if unknown:
        raise InputError(f"{where} has no setting {unknown[0]!r}", expected=" or ".join(fields))
    converted = {name: _convert(hints[name], value, f"{where}.{name}") for name, value in values.items()}
    try:
        return kind(**converted)
    except TypeError as error:
        raise InputError(f"{where} lacks a setting", got=str(error)) from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    """Return one value in the type that its setting states."""
    if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
        return build_settings(typing.cast(type[Any], hint), value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return _member(arguments, value, where)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _convert(arguments[0], value, where)  # every union of ours is `T | None`
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(arguments[0], each, where) for each in value)
    if origin is not None and isinstance(value, Mapping):
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is hint:
        return value
    raise InputError(f"setting {where} has the wrong type", expected=getattr(hint, "__name__", str(hint)), got=repr(value))


def _member(allowed: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return a value that must be one of a few."""
    if isinstance(value, str | int | bool) and value in allowed:
        return value
    raise InputError(f"setting {where} is wrong", expected=" or ".join(map(str, allowed)), got=repr(value))
