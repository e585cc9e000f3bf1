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
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        if isinstance(value, Mapping):
            return build_settings(typing.cast(type[Any], hint), value, where)
        raise _wrong_type(hint, value, where)
    if origin is typing.Literal:
        return _member(arguments, value, where)
    if origin in (types.UnionType, typing.Union):
        return _any_of(arguments, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return _tuple(arguments, value, where)
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return {name: _convert(arguments[1], each, f"{where}.{name}") for name, each in value.items()}
    return _plain(hint, value, where)


def _plain(hint: Any, value: Any, where: str) -> Any:
    """Return a value that is no container; a whole number may stand for a number with a fraction."""
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError as error:
            raise InputError(f"setting {where} is out of range", expected="a number of a float's size") from error
    if type(value) is hint or (hint is types.NoneType and value is None):
        return value
    raise _wrong_type(hint, value, where)


def _any_of(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return a value in the first of a union's types that takes it."""
    for hint in hints:
        if type(value) is hint:  # exactly: an int stays one in `float | int`
            return value
    others = [hint for hint in hints if hint is not types.NoneType]
    for hint in others[:-1]:
        try:
            return _convert(hint, value, where)
        except InputError:
            continue
    return _convert(others[-1], value, where)  # whose complaint is told


def _tuple(arguments: tuple[Any, ...], value: list[Any] | tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """Return a list as a tuple of one type, or of one type for each place."""
    if arguments[-1] is Ellipsis:
        return tuple(_convert(arguments[0], each, where) for each in value)
    if len(value) != len(arguments):
        raise InputError(f"setting {where} has the wrong length", expected=len(arguments), got=len(value))
    return tuple(_convert(hint, each, where) for hint, each in zip(arguments, value, strict=True))


def _member(allowed: tuple[Any, ...], value: Any, where: str) -> Any:
    """Return a value that must be one of a few."""
    if any(type(value) is type(each) and value == each for each in allowed):  # True is no 1
        return value
    raise InputError(f"setting {where} is wrong", expected=" or ".join(map(str, allowed)), got=repr(value))


def _wrong_type(hint: Any, value: Any, where: str) -> InputError:
    """Return the error of a value that is of another type."""
    return InputError(f"setting {where} has the wrong type", expected=getattr(hint, "__name__", str(hint)), got=repr(value))
