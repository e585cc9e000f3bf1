from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import Bundle
from protocol.errors import (
    BundleError,
    BundleFileError,
    BundleSignatureError,
    EmptySupportSetError,
    IncompatibleVersionError,
    KeyFileError,
    NumericalError,
    SampleDtypeError,
    SampleShapeError,
)
from protocol.keys import PrivateKey
from tests.edge_runtime.tiny import CLASSES, Scope, embed, features, raw_samples, write_tiny


def test_a_bundle_opens_with_a_key_or_its_file(bundle: Bundle, trusted_file: Path) -> None:
    for trusted in (trusted_file, str(trusted_file), bundle.trusted):
        opened = Bundle.open(str(bundle.path), trusted)
        assert opened.digest == bundle.digest
        assert opened.manifest.classes == CLASSES


def test_another_key_is_refused(bundle: Bundle) -> None:
    with pytest.raises(BundleSignatureError):
        Bundle.open(bundle.path, PrivateKey.generate().public)


def test_an_absent_key_file_is_named(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="nobody"):
        Bundle.open(bundle.path, tmp_path / "nobody.pub")


def test_an_altered_graph_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    copy = shutil.copytree(bundle.path, tmp_path / "copy")
    graph = copy / "graphs" / "embed.onnx"
    content = bytearray(graph.read_bytes())
    content[-1] ^= 1
    graph.write_bytes(content)
    with pytest.raises(BundleFileError, match="embed"):
        Bundle.open(copy, bundle.trusted)


def test_a_bundle_whose_time_is_over_is_refused(tmp_path: Path, release_key: PrivateKey) -> None:
    path = write_tiny(tmp_path / "old", release_key, expires=int(time.time()) - 10)
    with pytest.raises(IncompatibleVersionError, match="expired"):
        Bundle.open(path, release_key.public)


def test_a_bundle_for_a_newer_runtime_is_refused(tmp_path: Path, release_key: PrivateKey) -> None:
    path = write_tiny(tmp_path / "new", release_key, minimum_onnxruntime="99.0")
    with pytest.raises(IncompatibleVersionError, match=r"99\.0"):
        Bundle.open(path, release_key.public).embed(raw_samples(1))


def test_graphs_come_from_the_bytes_that_were_hashed(bundle: Bundle, tmp_path: Path) -> None:
    copy = shutil.copytree(bundle.path, tmp_path / "copy")
    opened = Bundle.open(copy, bundle.trusted)
    shutil.rmtree(copy)
    np.testing.assert_array_equal(opened.embed(raw_samples(3)), bundle.embed(raw_samples(3)))


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 600])
def test_embeddings_and_features_are_those_of_the_graphs(bundle: Bundle, count: int) -> None:
    samples = raw_samples(count)
    embeddings, found = bundle.embed(samples), bundle.features(samples)
    assert embeddings.dtype == found.dtype == np.float32
    assert embeddings.shape == (count, 3)
    assert found.shape == (count, 5)
    np.testing.assert_allclose(embeddings, embed(samples), atol=1e-6)
    np.testing.assert_allclose(found, features(samples), rtol=1e-4, atol=1e-5)


def test_memory_mapped_samples_in_column_order_give_the_same(bundle: Bundle, tmp_path: Path) -> None:
    samples = raw_samples(300)
    np.save(tmp_path / "samples.npy", np.asfortranarray(samples))
    mapped = np.load(tmp_path / "samples.npy", mmap_mode="r")
    np.testing.assert_array_equal(bundle.embed(mapped), bundle.embed(samples))


def test_wrong_samples_are_refused_everywhere(bundle: Bundle) -> None:
    for act in (bundle.embed, bundle.features, bundle.personalize):
        with pytest.raises(SampleDtypeError):
            act(raw_samples(4).astype(np.float32))
        with pytest.raises(SampleShapeError):
            act(raw_samples(4).reshape(4, 4))


def test_nothing_to_personalise_from_is_an_error(bundle: Bundle) -> None:
    with pytest.raises(EmptySupportSetError, match="about 8 samples"):
        bundle.personalize(raw_samples(0))


def test_an_absent_entry_point_is_named(bundle_paths: dict[Scope | None, Path], release_key: PrivateKey) -> None:
    opened = Bundle.open(bundle_paths[None], release_key.public)
    with pytest.raises(BundleError, match="features"):
        opened.features(raw_samples(2))


def test_results_that_are_not_finite_are_refused(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def run(self, feeds: object) -> list[np.ndarray]:
            return [np.array([[np.nan, 0, 0]], np.float32)]

    monkeypatch.setitem(bundle._sessions, "embed", Broken())
    with pytest.raises(NumericalError, match="embed"):
        bundle.personalize(raw_samples(1))
