"""Loading a data set by name, path or function.

A source is ``digits``, ``fashion-mnist``, ``module:function``, or a path: ``[kind:]path[?option=value&...]``. The kind of a
path is guessed from its name and content unless it is given. A path that does not exist is looked for in the folder
that the environment variable FEDTAILOR_DATA names.
"""

from __future__ import annotations

import os
from pathlib import Path

from protocol.errors import DatasetError
from trainer.data.dataset import Dataset
from trainer.data.sources.base import SourceKind
from trainer.data.sources.idx_folder import names_idx_set
from trainer.data.sources.options import split_options
from trainer.data.sources.own_function import ACCEPTS, is_function, load_function
from trainer.data.sources.registry import KINDS, NAMED

FUNCTION = "function"


def load_dataset(source: str) -> Dataset:
    """Return the data set that ``source`` names.

    Args:
        source: ``digits``, ``fashion-mnist``, ``module:function``, or ``[kind:]path[?option=value]``.

    Raises:
        DatasetError: It is absent or corrupt; the message says which file and what to do.
        MissingExtraError: A library that only this kind of source needs is not installed.
    """
    if source in NAMED:
        return NAMED[source]()
    prefix, colon, rest = source.partition(":")
    if colon and prefix == FUNCTION:
        return load_function(rest)
    if colon and prefix in KINDS:
        return _load(KINDS[prefix], rest)
    if is_function(source) and _existing(source) is None:
        return load_function(source)
    return _load(None, source)


def accepted() -> str:
    """Return every kind of source in one line, for messages and help."""
    return "; ".join([" or ".join(NAMED), *(f"{kind.accepts} ({kind.name}:PATH)" for kind in KINDS.values()), ACCEPTS])


def _load(kind: SourceKind | None, text: str) -> Dataset:
    """Load a path, perhaps followed by options, as the given kind or as the one it looks like."""
    text, options, given = split_options(text)
    path = _existing(text)
    if path is None:
        raise DatasetError("data set not found", expected=kind.accepts if kind else accepted(), got=text or "''", hint="check the path")
    try:
        kind = kind or _guess(path)
        if given - kind.options:
            expected = " or ".join(sorted(kind.options)) or "none"
            raise DatasetError(f"a source of kind {kind.name} takes other options", expected=expected, got=", ".join(sorted(given)))
        return kind.load(path, options)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read", got=str(error), hint="check its permissions") from error


def _existing(text: str) -> Path | None:
    """Return where a path lies, as given or below FEDTAILOR_DATA, or None."""
    if not text.strip():
        return None
    for path in (Path(text), Path(os.environ.get("FEDTAILOR_DATA", "data")) / text):
        try:
            if path.exists() or names_idx_set(path):
                return path
        except (OSError, ValueError):  # a name that is too long, or with a zero byte
            continue
    return None


def _guess(path: Path) -> SourceKind:
    """Return the kind that a path looks like."""
    kind = next((kind for kind in KINDS.values() if kind.recognises(path)), None)
    if kind is None:
        hint = "pass the folder that holds the files themselves, or name the kind: --data KIND:PATH"
        raise DatasetError(f"{path} is no data set that is known here", expected=accepted(), hint=hint)
    return kind
