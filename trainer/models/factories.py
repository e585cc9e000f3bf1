"""A user's own code, named as ``module:factory``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from protocol.errors import InputError


def load_factory(source: str) -> Callable[..., Any]:
    """Return the callable that ``module:factory`` names; the module is imported, so its code runs.

    Args:
        source: Dotted name of an importable module, a colon, the name of a callable in it.

    Raises:
        InputError: The module cannot be imported, or has no such callable.
    """
    module_name, _, name = source.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), name]):
        raise InputError("a factory is named wrongly", expected="module:factory", got=source, hint="as in my_models:small_network")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        hint = "a module in this folder is found with PYTHONPATH=."
        raise InputError(f"{module_name} cannot be imported", got=f"{type(error).__name__}: {error}", hint=hint) from error
    found = getattr(module, name, None)
    if not callable(found):
        got = "nothing of that name" if found is None else type(found).__name__
        raise InputError(f"{source} is no factory", expected=f"a callable {name} in {module_name}", got=got)
    factory: Callable[..., Any] = found
    return factory


def call_factory(source: str, *arguments: object) -> Any:
    """Return what the callable that ``module:factory`` names returns.

    Raises:
        InputError: It cannot be found, or raises.
    """
    factory = load_factory(source)
    try:
        return factory(*arguments)
    except InputError:
        raise
    except Exception as error:  # a user's factory may raise anything
        called = f"{source}({', '.join(map(repr, arguments))})"
        raise InputError(f"{called} failed", got=f"{type(error).__name__}: {error}") from error
