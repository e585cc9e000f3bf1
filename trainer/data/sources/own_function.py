"""A function of the user's own: ``module:function``, called without arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import numpy as np

from protocol.errors import DatasetError, FedtailorError
from trainer.data.dataset import Dataset
from trainer.data.sources.arrays import check_raw_dtype, dataset_from_arrays

ACCEPTS = "module:function that returns a Dataset or (samples, labels)"
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_function(source: str) -> bool:
    """Return whether a source has the form of ``module:function``."""
    return _FUNCTION.fullmatch(source) is not None


def load_function(source: str) -> Dataset:
    """Return what a function returns, checked.

    Raises:
        DatasetError: It cannot be imported, it fails, or it returns something else.
    """
    if not is_function(source):
        raise DatasetError("function was not understood", expected=ACCEPTS, got=source)
    function = _find(source)
    try:
        found = function()
    except FedtailorError:
        raise
    except Exception as error:  # the function is the user's and may raise anything
        raise DatasetError(f"{source} failed", got=f"{type(error).__name__}: {error}", hint="call it in Python to see where") from error
    if isinstance(found, Dataset):
        check_raw_dtype(source, found.samples)
        return found
    if not isinstance(found, tuple) or len(found) != 2:
        raise DatasetError(f"{source} returned something else", expected="a Dataset or (samples, labels)", got=type(found).__name__)
    samples, labels = map(np.asarray, found)
    return dataset_from_arrays(source.rpartition(":")[2], source, {"samples": samples, "labels": labels})


def _find(source: str) -> Callable[[], Any]:
    """Return the function that ``module:function`` names."""
    module_name, _, name = source.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        hint = "install what is missing, or put its folder on the path: PYTHONPATH=. fedtailor ..."
        raise DatasetError(f"module {module_name} cannot be imported", got=str(error), hint=hint) from error
    except Exception as error:  # the module is the user's and may raise anything
        raise DatasetError(f"module {module_name} cannot be imported", got=f"{type(error).__name__}: {error}") from error
    function: Any = getattr(module, name, None)
    if not callable(function):
        raise DatasetError(f"module {module_name} has no function {name}", got=type(function).__name__)
    return cast("Callable[[], Any]", function)
