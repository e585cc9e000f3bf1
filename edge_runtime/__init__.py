"""What a device runs: open a signed bundle, personalise from unlabelled samples, predict, take part.

numpy, ONNX Runtime and, for the agent, paho-mqtt; never torch or onnx. Names load when first used, so the numpy modules
work without ONNX Runtime.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see
    from edge_runtime.adaptive import AdaptiveClassifier
    from edge_runtime.bundle import Bundle
    from edge_runtime.classifier import Classifier
    from edge_runtime.prototype_classifier import PrototypeClassifier
    from edge_runtime.prototypes import Prototypes, class_statistics, nearest_prototype
    from edge_runtime.session_settings import SessionSettings
    from edge_runtime.store import BundleStore, StoreSettings

_HOMES = {
    "AdaptiveClassifier": "edge_runtime.adaptive",
    "Bundle": "edge_runtime.bundle",
    "BundleStore": "edge_runtime.store",
    "Classifier": "edge_runtime.classifier",
    "PrototypeClassifier": "edge_runtime.prototype_classifier",
    "Prototypes": "edge_runtime.prototypes",
    "SessionSettings": "edge_runtime.session_settings",
    "StoreSettings": "edge_runtime.store",
    "class_statistics": "edge_runtime.prototypes",
    "nearest_prototype": "edge_runtime.prototypes",
}

__all__ = [
    "AdaptiveClassifier",
    "Bundle",
    "BundleStore",
    "Classifier",
    "PrototypeClassifier",
    "Prototypes",
    "SessionSettings",
    "StoreSettings",
    "class_statistics",
    "nearest_prototype",
]


def __getattr__(name: str) -> object:
    """Return a public name, importing the module that holds it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
