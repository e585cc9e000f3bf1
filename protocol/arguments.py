"""What a caller hands over, held to its kind: a wrong one is a sentence and no error from the depths of a library."""

from __future__ import annotations

import math
import os
from numbers import Integral, Real
from pathlib import Path
from typing import TypeVar

from protocol.errors import FedtailorError, InputError

MOST_PATH_BYTES, MOST_NAME_BYTES = 4095, 255  # what Linux allows

Kind = TypeVar("Kind")


def as_path(value: object, what: str, error: type[FedtailorError] = InputError) -> Path:
    """Return a path given as text or as one.

    Raises:
        FedtailorError: Of the class ``error``: something else, or text that names no file on any system.
    """
    if not isinstance(value, str | Path):
        raise error(f"{what} is no path", expected="text or a pathlib.Path", got=type(value).__name__)
    path = Path(value)
    encoded = os.fsencode(path)
    if b"\0" in encoded or len(encoded) > MOST_PATH_BYTES or any(len(os.fsencode(part)) > MOST_NAME_BYTES for part in path.parts):
        expected = f"names of at most {MOST_NAME_BYTES} bytes, none of them zero"
        raise error(f"{what} cannot be a path", expected=expected, got=repr(str(path)[:60]))
    return path


def whole_number(value: object, what: str, lowest: int = 1) -> int:
    """Return a whole number of at least ``lowest``.

    Raises:
        InputError: Something else.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < lowest:
        got = value if isinstance(value, Real) else type(value).__name__
        raise InputError(f"{what} is wrong", expected=f"a whole number, at least {lowest}", got=got)
    return int(value)


def real_number(value: object, what: str) -> float:
    """Return a finite number.

    Raises:
        InputError: Something else.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise InputError(f"{what} is wrong", expected="a finite number", got=value if isinstance(value, Real) else type(value).__name__)
    return float(value)


def require(value: object, kind: type[Kind], what: str, expected: str, error: type[FedtailorError] = InputError) -> Kind:
    """Return a value of a kind.

    Args:
        value: What the caller handed over.
        kind: What it must be.
        what: What it is for, as the subject of a sentence.
        expected: How to get one, for people.
        error: Class of the error to raise.

    Raises:
        FedtailorError: Of the class ``error``.
    """
    if not isinstance(value, kind):
        raise error(f"{what} is wrong", expected=expected, got=type(value).__name__)
    return value
