"""Libraries that only some sources need."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from protocol.errors import MissingExtraError


def import_optional(name: str, purpose: str, extra: str) -> ModuleType:
    """Return a library, imported now.

    Args:
        name: Dotted name of the module.
        purpose: What it is needed for, as the beginning of a sentence.
        extra: Extra of ours that installs it.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        library = name.partition(".")[0]
        raise MissingExtraError(f"{purpose} needs {library}", hint=f'pip install "fedtailor[{extra}]"') from error
