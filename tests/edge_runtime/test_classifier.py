from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import Bundle, Classifier
from edge_runtime.personal_folder import RECORD_NAME
from edge_runtime.personalizer import TailoredWeights
from protocol.errors import BundleError, InputError, NumericalError, SampleShapeError
from protocol.keys import PrivateKey
from protocol.tensors import decode_tensors
from tests.edge_runtime.tiny import CLASSES, Scope, embed, logits, raw_samples, write_tiny

SUPPORT = raw_samples(40, seed=1)


def weights_file(folder: Path) -> Path:
    (path,) = folder.glob("personal-*.safetensors")
    return path


@pytest.fixture(params=["device", "sample"])
def scope(request: pytest.FixtureRequest) -> Scope:
    return request.param


@pytest.fixture
def scoped(bundle_paths: dict[Scope | None, Path], release_key: PrivateKey, scope: Scope) -> Bundle:
    return Bundle.open(bundle_paths[scope], release_key.public)


@pytest.mark.parametrize("count", [1, 2, 256, 300])
def test_logits_are_those_of_the_formula(scoped: Bundle, scope: Scope, count: int) -> None:
    query = raw_samples(count, seed=2)
    found = scoped.personalize(SUPPORT).logits(query)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, logits(SUPPORT, query, scope), rtol=1e-4, atol=1e-4)


def test_labels_and_probabilities_follow_the_logits(scoped: Bundle) -> None:
    query, classifier = raw_samples(50, seed=2), scoped.personalize(SUPPORT)
    scores, probabilities = classifier.logits(query), classifier.predict_proba(query)
    assert classifier.predict(query).tolist() == [CLASSES[place] for place in scores.argmax(axis=1)]
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), scores.argmax(axis=1))
    assert probabilities.dtype == np.float32


def test_no_samples_give_no_labels(scoped: Bundle) -> None:
    classifier = scoped.personalize(SUPPORT)
    assert classifier.predict(raw_samples(0)).shape == (0,)
    assert classifier.predict_proba(raw_samples(0)).shape == (0, 3)


def test_wrong_samples_are_refused(scoped: Bundle) -> None:
    with pytest.raises(SampleShapeError):
        scoped.personalize(SUPPORT).predict(raw_samples(2).reshape(2, 4))


def test_the_order_of_the_support_set_does_not_matter(bundle: Bundle) -> None:
    query = raw_samples(20, seed=2)
    np.testing.assert_allclose(bundle.personalize(SUPPORT).logits(query), bundle.personalize(SUPPORT[::-1]).logits(query), atol=1e-4)


def test_a_sample_alone_or_in_company_gets_the_same_logits(scoped: Bundle) -> None:
    query, classifier = raw_samples(20, seed=2), scoped.personalize(SUPPORT)
    alone = np.concatenate([classifier.logits(query[place : place + 1]) for place in range(20)])
    np.testing.assert_allclose(classifier.logits(query), alone, rtol=1e-4, atol=1e-4)


def test_one_model_for_all_needs_no_weights(bundle_paths: dict[Scope | None, Path], release_key: PrivateKey, tmp_path: Path) -> None:
    classifier = Bundle.open(bundle_paths[None], release_key.public).personalize(SUPPORT)
    assert classifier.tailored.weights == {}
    classifier.save(tmp_path / "mine")
    query = raw_samples(20, seed=2)
    np.testing.assert_array_equal(Classifier.open(tmp_path / "mine").logits(query), classifier.logits(query))


def test_a_saved_classifier_predicts_the_same(scoped: Bundle, tmp_path: Path) -> None:
    query, classifier = raw_samples(30, seed=2), scoped.personalize(SUPPORT)
    classifier.save(tmp_path / "mine")
    for opened in (Classifier.open(tmp_path / "mine"), Classifier.open(str(tmp_path / "mine"), scoped)):
        np.testing.assert_array_equal(opened.logits(query), classifier.logits(query))
        assert opened.tailored.support_size == 40


def test_what_is_saved_is_weights_embedding_and_origin(bundle: Bundle, tmp_path: Path) -> None:
    bundle.personalize(SUPPORT).save(tmp_path)
    record = json.loads((tmp_path / RECORD_NAME).read_bytes())
    assert record["bundle_digest"] == bundle.digest
    assert record["support_size"] == 40
    tensors = decode_tensors(weights_file(tmp_path).read_bytes())
    assert tensors.keys() == {"weight.0.kernel", "weight.0.bias", "embedding", "embedding_covariance"}
    np.testing.assert_allclose(np.asarray(tensors["embedding"], np.float64), embed(SUPPORT).mean(axis=0), atol=1e-6)


def test_a_classifier_of_another_bundle_is_refused(bundle: Bundle, tmp_path: Path, release_key: PrivateKey) -> None:
    other = Bundle.open(write_tiny(tmp_path / "other", release_key, name="other"), release_key.public)
    bundle.personalize(SUPPORT).save(tmp_path / "mine")
    with pytest.raises(BundleError, match="another bundle"):
        Classifier.open(tmp_path / "mine", other)


def test_altered_weights_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    bundle.personalize(SUPPORT).save(tmp_path)
    content = bytearray(weights_file(tmp_path).read_bytes())
    content[-1] ^= 1
    weights_file(tmp_path).write_bytes(content)
    with pytest.raises(InputError, match="altered"):
        Classifier.open(tmp_path)


def test_weights_that_do_not_fit_are_refused(bundle: Bundle, tmp_path: Path) -> None:
    kernel = np.zeros((4, 3), np.float32)
    Classifier(bundle, TailoredWeights({"weight.0.kernel": kernel}, None, 1)).save(tmp_path)
    with pytest.raises(InputError, match="does not fit"):
        Classifier.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"bundle_path": 3}', b"\xff"])
def test_a_malformed_record_is_refused(bundle: Bundle, tmp_path: Path, content: bytes) -> None:
    bundle.personalize(SUPPORT).save(tmp_path)
    (tmp_path / RECORD_NAME).write_bytes(content)
    with pytest.raises(InputError):
        Classifier.open(tmp_path)


def test_an_empty_folder_holds_no_classifier(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        Classifier.open(tmp_path)


def test_scores_that_are_not_finite_name_no_class(bundle: Bundle) -> None:
    huge = {name: np.full_like(tensor, 3e38) for name, tensor in bundle.personalize(SUPPORT).tailored.weights.items()}
    with pytest.raises(NumericalError):
        Classifier(bundle, TailoredWeights(huge, None, 1)).predict(np.full((1, 2, 2), 255, np.uint8))


def test_threads_may_share_a_classifier(scoped: Bundle) -> None:
    query, classifier = raw_samples(30, seed=2), scoped.personalize(SUPPORT)
    expected = classifier.logits(query)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: classifier.logits(query), range(40)):
            np.testing.assert_array_equal(found, expected)
