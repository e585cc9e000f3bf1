"""Strict JSON <-> frozen dataclasses, by their type hints.

Nothing is guessed: an unknown key, a missing one whose field has no default, another type, a number that is not finite, a
repeated key or deep nesting is refused, and the place of the fault is named. Supported: str, int, float, bool, None | T,
Literal, tuple[T, ...], Mapping[str, T], nested dataclasses, and JsonValue for free-form settings.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

JsonValue: TypeAlias = Any  # any value JSON can hold; parse_json bounds its depth
Kind = TypeVar("Kind")
MAXIMUM_DEPTH = 16


class SchemaError(ValueError):
    """A JSON value does not fit; callers turn it into an error of the tree.

    Args:
        where: Place in the document.
        expected: What would fit.
        got: What is there.
    """

    def __init__(self, where: str, expected: str, got: str) -> None:
        self.where = where
        self.expected = expected
        self.got = got
        super().__init__(f"{where}: expected {expected}, got {got}")


def parse_json(data: bytes) -> JsonValue:
    """Return the value in strict UTF-8 JSON.

    Raises:
        SchemaError: Not JSON, a repeated key, NaN or infinity, or nested too deeply.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant, parse_int=_bounded, parse_float=_finite)
        _check(value, 0)
    except SchemaError:
        raise
    except (ValueError, RecursionError) as error:
        raise SchemaError("document", "UTF-8 JSON", type(error).__name__) from error
    return value


def encode(value: object) -> JsonValue:
    """Return the JSON value of a dataclass, tuple, mapping or plain value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def to_json(value: object) -> bytes:
    """Return deterministic, readable JSON: sorted keys, two spaces, one newline at the end."""
    return (json.dumps(encode(value), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()


def decode(kind: type[Kind], value: JsonValue, where: str = "document") -> Kind:
    """Return a JSON value as a dataclass.

    Args:
        kind: The dataclass.
        value: What ``parse_json`` gave.
        where: Name of the place, for errors.

    Raises:
        SchemaError: It does not fit.
    """
    decoded: Kind = _decode(kind, value, where)
    return decoded


def _decode(hint: Any, value: JsonValue, where: str) -> Any:
    """Return a value as the type that a hint states."""
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(typing.cast("type[Any]", hint), value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(arguments, value, where)
    if origin is typing.Literal:
        return _require(value, value in arguments, where, " or ".join(map(str, arguments)))
    if origin is tuple:
        _require(value, isinstance(value, list), where, "a list")
        return tuple(_decode(arguments[0], item, f"{where}[{place}]") for place, item in enumerate(value))
    if origin is Mapping:
        _require(value, isinstance(value, dict), where, "an object")
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _decode_plain(hint, value, where)


def _decode_plain(hint: Any, value: JsonValue, where: str) -> Any:
    """Return a number, text or truth value."""
    if hint is float and type(value) in (int, float):
        return _require(float(value), math.isfinite(value), where, "a finite number")
    return _require(value, type(value) is hint, where, getattr(hint, "__name__", str(hint)))


def _decode_union(kinds: tuple[Any, ...], value: JsonValue, where: str) -> Any:
    """Return the value as the first kind that fits."""
    if value is None and type(None) in kinds:
        return None
    faults = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _decode(kind, value, where)
        except SchemaError as fault:
            faults.append(fault)
    if len(faults) == 1:
        raise faults[0]
    raise SchemaError(where, " or ".join(fault.expected for fault in faults), _shown(value))


def _decode_dataclass(kind: type[Any], value: JsonValue, where: str) -> Any:
    """Return an object as a dataclass; its own validation may refuse it too."""
    _require(value, isinstance(value, dict), where, "an object")
    hints, names, required = _fields_of(kind)  # type: ignore[arg-type]  # a class can be hashed
    odd = sorted((value.keys() - set(names)) | (required - value.keys()))
    if odd:
        fault = "is not known" if odd[0] in value else "is missing"
        raise SchemaError(where, f"the keys {', '.join(names)}", f"{odd[0]!r}, which {fault}")
    return kind(**{name: _decode(hints[name], value[name], f"{where}.{name}") for name in names if name in value})


@functools.cache
def _fields_of(kind: type[Any]) -> tuple[dict[str, Any], list[str], set[str]]:
    """Return a dataclass's type hints, the names of its fields, and those without a default; resolving hints is slow."""
    fields = dataclasses.fields(kind)
    required = {field.name for field in fields if field.default is field.default_factory is dataclasses.MISSING}
    return typing.get_type_hints(kind), [field.name for field in fields], required


def _require(value: Kind, holds: bool, where: str, expected: str) -> Kind:
    """Return the value if the condition holds."""
    if not holds:
        raise SchemaError(where, expected, _shown(value))
    return value


def _shown(value: JsonValue) -> str:
    """Return a short picture of a value."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _without_repeats(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    """Return an object whose keys all differ."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise SchemaError("document", "different keys in each object", "a repeated key")
    return content


def _no_constant(name: str) -> float:
    """Refuse the numbers that JSON does not have."""
    raise SchemaError("document", "finite numbers", name)


def _bounded(digits: str) -> int:
    """Return an integer of 64 bits; longer ones cost time and mean nothing here."""
    if len(digits) > 20 or not -(2**63) <= int(digits) < 2**64:
        raise SchemaError("document", "integers of 64 bits", f"{len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    """Return a number that a float can hold; 1e999 would become infinity."""
    if not math.isfinite(float(digits)):
        raise SchemaError("document", "finite numbers", digits[:20])
    return float(digits)


def _check(value: JsonValue, depth: int) -> None:
    """Refuse nesting beyond the limit, and halves of surrogate pairs, which no UTF-8 text can hold."""
    if isinstance(value, str):
        value.encode()
    if depth > MAXIMUM_DEPTH:
        raise SchemaError("document", f"at most {MAXIMUM_DEPTH} levels", "more")
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        _check(item, depth + 1)
