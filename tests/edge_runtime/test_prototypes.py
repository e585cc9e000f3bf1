"""Prototypes as values that add up, and the nearest-prototype rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_runtime.prototypes import Prototypes, class_statistics, nearest_prototype
from protocol.errors import InputError, LabelError


def test_one_and_ninety_nine_samples_weigh_one_and_ninety_nine() -> None:
    generator = np.random.default_rng(0)
    few, many = generator.normal(size=(1, 6)).astype(np.float32), generator.normal(3.0, size=(99, 6)).astype(np.float32)
    total = class_statistics(few, np.array([2])) + class_statistics(many, np.full(99, 2))
    np.testing.assert_allclose(total.means()[0], np.concatenate([few, many]).mean(axis=0), atol=1e-6)
    assert total.counts.tolist() == [100]


def test_a_class_nobody_holds_is_absent_not_zero() -> None:
    total = class_statistics(np.ones((2, 3)), np.array([0, 4])) + class_statistics(np.ones((1, 3)), np.array([7]))
    assert total.classes.tolist() == [0, 4, 7]
    assert np.all(total.means() == 1.0)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-100, 100)), min_size=1, max_size=30), st.data())
def test_sums_do_not_depend_on_how_samples_are_dealt(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    labels, features = np.array([row[0] for row in rows]), np.array([[row[1], 1.0] for row in rows], np.float64)
    cut = data.draw(st.integers(0, len(rows)))
    whole = class_statistics(features, labels)
    parts = class_statistics(features[cut:], labels[cut:]) + class_statistics(features[:cut], labels[:cut])
    np.testing.assert_array_equal(whole.classes, parts.classes)
    np.testing.assert_array_equal(whole.sums, parts.sums)
    np.testing.assert_array_equal(whole.counts, parts.counts)


def test_from_means_gives_the_sums_back_in_class_order() -> None:
    value = Prototypes.from_means(np.array([5, 1]), np.array([[2.0], [3.0]]), np.array([10, 4]))
    assert value.classes.tolist() == [1, 5]
    assert value.sums.ravel().tolist() == [12.0, 20.0]


def test_small_classes_are_withheld() -> None:
    value = class_statistics(np.ones((12, 2)), np.array([0] * 10 + [1] * 2))
    assert value.at_least(10).classes.tolist() == [0]


def test_nearest_is_the_nearest() -> None:
    generator = np.random.default_rng(1)
    features, means = generator.normal(size=(40, 5)), generator.normal(size=(3, 5))
    prototypes = Prototypes.from_means(np.array([2, 5, 9]), means, np.array([1, 1, 1]))
    distances = ((features[:, None] - prototypes.means()[None]) ** 2).sum(axis=2)
    np.testing.assert_array_equal(nearest_prototype(features, prototypes), np.array([2, 5, 9])[distances.argmin(axis=1)])


def test_misfits_are_refused() -> None:
    with pytest.raises(LabelError):
        class_statistics(np.ones((3, 2)), np.array([0, 1]))
    with pytest.raises(InputError):
        class_statistics(np.ones((1, 2)), np.array([0])) + class_statistics(np.ones((1, 3)), np.array([0]))
    with pytest.raises(InputError):
        nearest_prototype(np.ones((1, 2)), class_statistics(np.ones((0, 2)), np.array([], int)))
