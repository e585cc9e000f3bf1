"""Whatever a program hands to the public functions, it gets a result or one sentence of the error tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_runtime import (
    AdaptiveClassifier,
    Bundle,
    BundleStore,
    Classifier,
    PrototypeClassifier,
    SessionSettings,
    class_statistics,
    nearest_prototype,
)
from edge_runtime.adapters import Adapter, load_adapter, make_adapter, save_adapter
from edge_runtime.fit_course import FitBudget, FitOptions
from edge_runtime.learner import Learner
from protocol.errors import FedtailorError
from protocol.keys import PrivateKey
from protocol.manifest import TensorSpec
from tests.edge_runtime import tiny

KEY = PrivateKey(bytes([3] * 32))
FACTOR = TensorSpec("A", "float32", ("rank", 4), "factor", optional=True)


def odd_values(folder: Path) -> dict[str, Any]:
    """Return what nobody should hand over, by what it is."""
    return {
        "None": None,
        "text": "words",
        "bytes": b"x",
        "a fraction": 1.5,
        "NaN": float("nan"),
        "below zero": -1,
        "a ragged list": [[1], [1, 2]],
        "a list of None": [None, None],
        "a list of objects": [object()],
        "a dictionary": {"a": 1},
        "a set": {1},
        "an object": object(),
        "an iterator over None": iter([None]),
        "an array of objects": np.array([None, "x"], object),
        "an array without axes": np.array(3),
        "an object without axes": np.array(None, object),
        "an array of text": np.array(["a", "b"]),
        "an array of dates": np.array(["2020-01-01"], "datetime64[D]"),
        "complex numbers": np.ones((2, 2, 2), complex),
        "records": np.zeros(2, [("a", int)]),
        "an empty array": np.empty(0),
        "a folder": folder,
        "an absent path": folder / "absent",
        "a path with a zero byte": Path("a\0b"),
        "a name of five thousand letters": Path("a" * 5000),
    }


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[Any], object]]:
    """Return public functions of one argument, by name; all others are fine."""
    root = tmp_path_factory.mktemp("odd")
    path, samples = tiny.write_tiny(root / "bundle", KEY), tiny.raw_samples(20)
    bundle = Bundle.open(path, KEY.public)
    classifier = bundle.personalize(samples)
    classifier.save(root / "mine")
    plain = bundle.manifest.graphs["classify"]
    graph = replace(plain, inputs=(*plain.inputs, FACTOR))
    adapter = Adapter({"A": np.ones((2, 4), np.float32)}, 2)
    features, labels = np.zeros((2, 4)), np.zeros(2, int)
    prototypes = class_statistics(features, labels, 3)
    return {
        "Bundle.open": lambda value: Bundle.open(value, KEY.public),
        "Bundle.open, trusted": lambda value: Bundle.open(path, value),
        "Bundle.open, precision": lambda value: Bundle.open(path, KEY.public, value),
        "Bundle.open, settings": lambda value: Bundle.open(path, KEY.public, settings=value),
        "SessionSettings, threads": lambda value: SessionSettings(threads=value),
        "SessionSettings, providers": lambda value: SessionSettings(providers=value),
        "Bundle.session": bundle.session,
        "Bundle.precision": bundle.precision,
        "Bundle.file": bundle.file,
        "Bundle.embed": bundle.embed,
        "Bundle.features": bundle.features,
        "Bundle.personalize": bundle.personalize,
        "Bundle.distribution_signature": bundle.distribution_signature,
        "Bundle.baked_session": lambda value: bundle.baked_session("classify", value),
        "Bundle.baked_session, a constant": lambda value: bundle.baked_session("classify", {"weight.0.bias": value}),
        "Classifier": lambda value: Classifier(value, classifier.tailored),
        "Classifier, tailored": lambda value: Classifier(bundle, value),
        "Classifier.predict": classifier.predict,
        "Classifier.logits": classifier.logits,
        "Classifier.predict_proba": classifier.predict_proba,
        "Classifier.top_k": lambda value: classifier.top_k(samples, value),
        "Classifier.use_adapter": classifier.use_adapter,
        "Classifier.save": lambda value: classifier.save(root / "saved" if isinstance(value, str) else value),
        "Classifier.save, over a file": lambda _: classifier.save(path / "manifest.json"),
        "Classifier.open": Classifier.open,
        "Classifier.open, bundle": lambda value: Classifier.open(root / "mine", value),
        "Classifier.open, trusted": lambda value: Classifier.open(root / "mine", trusted=value),
        "make_adapter": lambda value: make_adapter(value, graph),
        "make_adapter, a factor": lambda value: make_adapter({"A": value}, graph),
        "load_adapter": lambda value: load_adapter(value, graph),
        "save_adapter": lambda value: save_adapter(root / "a.safetensors" if isinstance(value, str) else value, adapter),
        "class_statistics": lambda value: class_statistics(value, labels, 3),
        "class_statistics, labels": lambda value: class_statistics(features, value, 3),
        "class_statistics, classes": lambda value: class_statistics(features, labels, value),
        "nearest_prototype": lambda value: nearest_prototype(value, prototypes),
        "nearest_prototype, prototypes": lambda value: nearest_prototype(features, value),
        "PrototypeClassifier": lambda value: PrototypeClassifier(value, ("a", "b")),
        "FitOptions, share": lambda value: FitOptions(processor_share=value),
        "FitOptions, save": lambda value: FitOptions(save_every=value),
        "FitBudget, steps": lambda value: FitBudget(steps=value),
        "FitBudget, seconds": lambda value: FitBudget(seconds=value),
        "BundleStore": lambda value: BundleStore(value, KEY.public),
        "BundleStore, trusted": lambda value: BundleStore(root / "store", value),
        "Learner": Learner,
        "AdaptiveClassifier": AdaptiveClassifier,
    }


def test_odd_arguments_are_used_or_refused_in_one_sentence(calls: dict[str, Callable[[Any], object]], tmp_path: Path) -> None:
    wrong, refused = [], 0
    for name, call in calls.items():
        for kind, value in odd_values(tmp_path).items():
            try:
                call(value)
            except FedtailorError as error:
                refused += 1
                if "\n" in str(error):
                    wrong.append(f"{name} given {kind}: {error}")
            except Exception as error:  # noqa: BLE001  # what the test is about
                wrong.append(f"{name} given {kind}: {type(error).__name__}: {error}")
    assert wrong == []
    assert refused > 20 * len(calls)
