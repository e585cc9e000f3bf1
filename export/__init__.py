"""From a trained run to a signed bundle: ONNX graphs, the parity gate, the manifest, and the demo of the whole way."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see
    from export.bundling import Origin, Release, bundle_from_parts, export_run
    from export.graphs import to_onnx
    from export.parity import check_parity

# Loaded when asked for: the commands of this package start without waiting for torch.
_HOMES = {
    "Origin": "export.bundling",
    "Release": "export.bundling",
    "bundle_from_parts": "export.bundling",
    "check_parity": "export.parity",
    "export_run": "export.bundling",
    "to_onnx": "export.graphs",
}

__all__ = ["Origin", "Release", "bundle_from_parts", "check_parity", "export_run", "to_onnx"]


def __getattr__(name: str) -> object:
    """Return a public name, importing the module that holds it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
