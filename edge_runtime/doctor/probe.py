"""Runs in a child process: load what a bundle needs, and say which versions they are. The child may die of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_runtime.child import at_stage


def answer(_: Mapping[str, Any]) -> dict[str, str]:
    """Return versions by name; what cannot be loaded is named in ``fault`` with Python's own words."""
    versions: dict[str, str] = {}
    try:
        at_stage("numpy")
        import numpy as np

        versions["numpy"] = np.__version__
        at_stage("onnxruntime")
        from edge_runtime.sessions import runtime_version, try_arrays

        versions["onnxruntime"] = runtime_version()
        try_arrays()
    except Exception as error:  # noqa: BLE001  # whatever an import may raise; AttributeError and SystemError are common with mixed versions
        versions["fault"] = f"{type(error).__name__}: {error}"
    return versions
