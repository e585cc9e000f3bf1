from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import Bundle, Classifier
from protocol.errors import InputError
from protocol.keys import PrivateKey
from tests.edge_runtime.tiny import CLASSES, Scope, raw_samples

SUPPORT, QUERY = raw_samples(40, seed=1), raw_samples(300, seed=2)


def test_baked_and_fed_weights_give_the_same_scores(bundle: Bundle, tmp_path: Path) -> None:
    fed, baked = bundle.personalize(SUPPORT), bundle.personalize(SUPPORT, bake=True)
    np.testing.assert_allclose(baked.logits(QUERY), fed.logits(QUERY), rtol=1e-5, atol=1e-5)
    baked.save(tmp_path)
    opened = Classifier.open(tmp_path, bundle, bake=True)
    assert opened.baked
    np.testing.assert_array_equal(opened.logits(QUERY), baked.logits(QUERY))


def test_a_baked_classifier_keeps_its_own_weights(bundle: Bundle) -> None:
    first, second = bundle.personalize(SUPPORT, bake=True), bundle.personalize(QUERY, bake=True)
    before = first.logits(QUERY[:4])
    assert not np.allclose(before, second.logits(QUERY[:4]), atol=1e-4)
    del second
    np.testing.assert_array_equal(first.logits(QUERY[:4]), before)


def test_weights_of_each_sample_cannot_be_baked(bundle_paths: dict[Scope | None, Path], release_key: PrivateKey) -> None:
    with pytest.raises(InputError, match="bake"):
        Bundle.open(bundle_paths["sample"], release_key.public).personalize(SUPPORT, bake=True)


def test_one_model_for_all_is_baked_already(bundle_paths: dict[Scope | None, Path], release_key: PrivateKey) -> None:
    opened = Bundle.open(bundle_paths[None], release_key.public)
    np.testing.assert_array_equal(opened.personalize(SUPPORT, bake=True).logits(QUERY), opened.personalize(SUPPORT).logits(QUERY))


@pytest.mark.parametrize("bake", [False, True])
@pytest.mark.parametrize("count", [1, 7, 256, 257, 300])
def test_every_batch_size_gives_the_same_labels(bundle: Bundle, bake: bool, count: int) -> None:
    classifier = bundle.personalize(SUPPORT, bake=bake)
    alone = [classifier.predict(QUERY[place : place + 1])[0] for place in range(count)]
    assert classifier.predict(QUERY[:count]).tolist() == alone


def test_the_likeliest_classes_come_first(bundle: Bundle) -> None:
    classifier = bundle.personalize(SUPPORT)
    found = classifier.top_k(QUERY[:30], 2)
    probabilities = classifier.predict_proba(QUERY[:30])
    assert found.classes.shape == found.probabilities.shape == (30, 2)
    assert found.classes[:, 0].tolist() == classifier.predict(QUERY[:30]).tolist()
    np.testing.assert_array_equal(found.probabilities, -np.sort(-probabilities, axis=1)[:, :2])
    assert classifier.top_k(QUERY[:2], 9).classes.shape == (2, len(CLASSES))
    assert classifier.top_k(QUERY[:0], 2).classes.shape == (0, 2)
    with pytest.raises(InputError):
        classifier.top_k(QUERY, 0)


@pytest.mark.parametrize("bake", [False, True])
def test_many_threads_get_their_own_answers(bundle: Bundle, bake: bool) -> None:
    """Eight threads with batches of their own, started together: each must see the labels of its own samples."""
    classifier = bundle.personalize(SUPPORT, bake=bake)
    batches = [raw_samples(1 + 5 * place, seed=place) for place in range(8)]
    expected = [classifier.logits(batch) for batch in batches]
    together, wrong = threading.Barrier(8), list[int]()

    def work(place: int) -> None:
        together.wait()
        for _ in range(100):
            if not np.array_equal(classifier.logits(batches[place]), expected[place]):
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
