from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_runtime.prototype_classifier import PrototypeClassifier
from edge_runtime.prototypes import Prototypes, class_statistics
from protocol.errors import InputError, LabelError, SampleNotFiniteError
from protocol.tensors import encode_tensors
from tests.source_tree import ROOT

NAMES = ("cat", "dog", "fox")
RANDOM = np.random.default_rng(0)
LABELS = np.repeat([0, 2], [40, 9])
FEATURES = RANDOM.standard_normal((49, 5)) + 6 * LABELS[:, None]


def test_mean_deviation_and_count_of_each_class() -> None:
    found = class_statistics(FEATURES, LABELS)
    assert found.counts.tolist() == [40, 9]
    for place, label in enumerate((0, 2)):
        np.testing.assert_allclose(found.means()[place], FEATURES[label == LABELS].mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(found.deviations()[place], FEATURES[label == LABELS].std(axis=0), rtol=1e-4)


def test_deviations_add_up_over_devices() -> None:
    both = class_statistics(FEATURES[:20], LABELS[:20]) + class_statistics(FEATURES[20:], LABELS[20:])
    np.testing.assert_allclose(both.deviations(), class_statistics(FEATURES, LABELS).deviations(), rtol=1e-5)
    over_the_wire = Prototypes.from_means(both.classes, both.means(), both.counts)
    with pytest.raises(InputError, match="no deviations"):
        (both + over_the_wire).deviations()


def test_a_class_with_too_few_samples_is_left_out() -> None:
    assert PrototypeClassifier.fit(FEATURES, LABELS, NAMES).prototypes.classes.tolist() == [0]
    both = PrototypeClassifier.fit(FEATURES, LABELS, NAMES, minimum_count=9)
    assert both.predict(np.array([[0.0] * 5, [12.0] * 5])).tolist() == ["cat", "fox"]
    with pytest.raises(InputError, match="at least 50"):
        PrototypeClassifier.fit(FEATURES, LABELS, NAMES, minimum_count=50)


@pytest.mark.parametrize("labels", [np.full(49, 3), np.full(49, -1), np.zeros(48, int), np.zeros(49)])
def test_wrong_labels_are_refused(labels: np.ndarray) -> None:
    with pytest.raises(LabelError):
        PrototypeClassifier.fit(FEATURES, labels, NAMES)


def test_wrong_features_are_refused() -> None:
    classifier = PrototypeClassifier.fit(FEATURES, LABELS, NAMES)
    with pytest.raises(SampleNotFiniteError):
        classifier.predict(np.full((1, 5), np.nan))
    for shape in ((1, 4), (5,)):
        with pytest.raises(InputError):
            classifier.predict(np.zeros(shape))
    with pytest.raises(InputError):
        PrototypeClassifier.fit(np.full((49, 5), np.inf), LABELS, NAMES)


def test_it_is_saved_and_opened(tmp_path: Path) -> None:
    classifier = PrototypeClassifier.fit(FEATURES, LABELS, NAMES, minimum_count=1)
    classifier.save(tmp_path / "prototypes.safetensors")
    opened = PrototypeClassifier.open(tmp_path / "prototypes.safetensors", NAMES)
    assert opened.predict(FEATURES).tolist() == classifier.predict(FEATURES).tolist()
    np.testing.assert_array_equal(opened.prototypes.deviations(), classifier.prototypes.deviations())
    with pytest.raises(InputError, match="classes"):
        PrototypeClassifier.open(tmp_path / "prototypes.safetensors", ("cat",))


@pytest.mark.parametrize(
    "tensors",
    [
        {"sums": np.zeros((2, 3)), "counts": np.ones(2, np.int64)},
        {"classes": np.arange(2), "sums": np.zeros((3, 3)), "counts": np.ones(2, np.int64)},
        {"classes": np.arange(2), "sums": np.zeros((2, 3)), "counts": np.zeros(2, np.int64)},
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    (tmp_path / "bad").write_bytes(encode_tensors(tensors))
    with pytest.raises(InputError):
        PrototypeClassifier.open(tmp_path / "bad", NAMES)


def test_it_works_without_the_runtime() -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None; import numpy as np; from edge_runtime import PrototypeClassifier;"
        "c = PrototypeClassifier.fit(np.eye(2).repeat(10, axis=0), np.repeat([0, 1], 10), ('a', 'b')); print(*c.predict(np.eye(2)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["a", "b"]
