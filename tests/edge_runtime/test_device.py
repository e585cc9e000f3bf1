"""What a device does with a real bundle, and with everything that can be wrong with samples, keys and files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_runtime.bundle import Bundle
from edge_runtime.classifier import Classifier
from edge_runtime.samples import check_samples, read_samples
from protocol.errors import (
    BundleError,
    BundleFileError,
    BundleSignatureError,
    EmptySupportSetError,
    IncompatibleVersionError,
    InputError,
    SampleDtypeError,
    SampleNotFiniteError,
    SampleRangeError,
    SampleShapeError,
    UnlistedFileError,
)
from protocol.keys import PrivateKey
from protocol.manifest import RawInput
from tests.releases import Release

FLOATS = RawInput("float32", (3,), -1.0, 1.0, "")


@pytest.fixture(scope="module")
def bundle(release: Release) -> Bundle:
    return Bundle.open(release.bundle, release.trusted)


@pytest.fixture(scope="module")
def support(release: Release) -> np.ndarray:
    return release.data()[0].new_devices[0].support


@pytest.fixture
def copy(release: Release, tmp_path: Path) -> Path:
    return Path(shutil.copytree(release.bundle, tmp_path / "bundle"))


def test_batches_of_any_size_give_the_same_labels(bundle: Bundle, support: np.ndarray) -> None:
    classifier = bundle.personalize(support)
    many = np.tile(support, (6, 1, 1))[:300]
    whole = classifier.predict(many)
    assert whole.shape == (300,)
    assert set(whole) <= set(bundle.manifest.classes)
    np.testing.assert_array_equal(whole, np.concatenate([classifier.predict(many[at : at + 1]) for at in range(300)]))
    assert classifier.predict(many[:0]).shape == (0,)
    assert classifier.predict_proba(many[:0]).shape == (0, 10)
    np.testing.assert_allclose(classifier.predict_proba(many).sum(axis=1), 1.0, atol=1e-5)


def test_order_and_repetition_of_the_support_set_do_not_matter(bundle: Bundle, support: np.ndarray) -> None:
    first = bundle.personalize(support).tailored
    second = bundle.personalize(np.concatenate([support[::-1], support])).tailored
    assert first.embedding is not None
    assert second.embedding is not None
    np.testing.assert_allclose(first.embedding, second.embedding, atol=1e-6)
    assert first.embedding.sum() == pytest.approx(1.0, abs=1e-5)


def test_different_devices_get_different_classifiers(bundle: Bundle, release: Release) -> None:
    devices = release.data()[0].new_devices
    first, second = (bundle.personalize(device.support).tailored.weights for device in devices[:2])
    assert first.keys() == second.keys()
    assert all(not np.allclose(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize("count", [1, 2, 255, 257])
def test_any_support_size_works(bundle: Bundle, support: np.ndarray, count: int) -> None:
    assert bundle.personalize(np.tile(support, (5, 1, 1))[:count]).tailored.support_size == count


def test_wrong_samples_are_refused_each_with_its_own_class(bundle: Bundle, support: np.ndarray) -> None:
    cases: list[tuple[np.ndarray, type[InputError]]] = [
        (support[:0], EmptySupportSetError),
        (support[0], SampleShapeError),
        (support[:, :7], SampleShapeError),
        (support.reshape(len(support), 64), SampleShapeError),
        (support.astype(np.float64), SampleDtypeError),
        (np.full(support.shape, np.nan, np.float32), SampleNotFiniteError),
        (support.astype(np.int16) - 1, SampleRangeError),
        (np.array([["a"]]), SampleDtypeError),
        (np.array(3, np.uint8), SampleShapeError),
    ]
    for samples, kind in cases:
        with pytest.raises(kind) as caught:
            bundle.personalize(samples)
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
    classifier = bundle.personalize(support)
    for samples, kind in cases[1:]:
        with pytest.raises(kind):
            classifier.predict(samples)


def test_not_finite_floats_are_named(tmp_path: Path) -> None:
    for value in (np.nan, np.inf, -np.inf):
        with pytest.raises(SampleNotFiniteError):
            check_samples(np.array([[0, value, 0]], np.float32), FLOATS)
    check_samples(np.zeros((2, 3), np.float32), FLOATS)


def test_a_saved_classifier_comes_back(bundle: Bundle, support: np.ndarray, tmp_path: Path) -> None:
    classifier = bundle.personalize(support)
    classifier.save(tmp_path / "mine")
    again = Classifier.open(tmp_path / "mine")
    np.testing.assert_array_equal(again.logits(support), classifier.logits(support))
    assert again.tailored.support_size == len(support)


@pytest.mark.parametrize("pattern", ["personal-*.safetensors", "personal.json"])
def test_an_altered_classifier_is_refused(bundle: Bundle, support: np.ndarray, tmp_path: Path, pattern: str) -> None:
    bundle.personalize(support).save(tmp_path / "mine")
    (path,) = (tmp_path / "mine").glob(pattern)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x20
    path.write_bytes(data)
    with pytest.raises((InputError, BundleError)):
        Classifier.open(tmp_path / "mine")
    path.unlink()
    with pytest.raises(InputError):
        Classifier.open(tmp_path / "mine")


def test_another_bundle_is_refused(release: Release, bundle: Bundle, support: np.ndarray, tmp_path: Path) -> None:
    bundle.personalize(support).save(tmp_path / "mine")
    record = json.loads((tmp_path / "mine" / "personal.json").read_bytes())
    (tmp_path / "mine" / "personal.json").write_text(json.dumps(record | {"bundle_digest": "0" * 64}))
    with pytest.raises(BundleError, match="another bundle"):
        Classifier.open(tmp_path / "mine")


def test_one_flipped_byte_in_any_file_is_found(release: Release, copy: Path) -> None:
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        content = path.read_bytes()
        for place in {0, len(content) // 2, len(content) - 1}:
            altered = bytearray(content)
            altered[place] ^= 0x01
            path.write_bytes(altered)
            with pytest.raises((BundleSignatureError, BundleFileError)):
                Bundle.open(copy, release.trusted)
        path.write_bytes(content)
    Bundle.open(copy, release.trusted)


def test_extra_missing_and_linked_files_are_found(release: Release, copy: Path) -> None:
    (copy / "graphs" / "extra.onnx").write_bytes(b"x")
    with pytest.raises(UnlistedFileError):
        Bundle.open(copy, release.trusted)
    (copy / "graphs" / "extra.onnx").unlink()
    graph = copy / "graphs" / "embed.onnx"
    moved = copy.parent / "embed.onnx"
    graph.rename(moved)
    with pytest.raises(BundleFileError):
        Bundle.open(copy, release.trusted)
    graph.symlink_to(moved)
    with pytest.raises((BundleFileError, UnlistedFileError)):
        Bundle.open(copy, release.trusted)


def test_another_key_is_refused(release: Release) -> None:
    with pytest.raises(BundleSignatureError):
        Bundle.open(release.bundle, PrivateKey.generate().public)


def test_a_newer_runtime_than_ours_is_asked_for(bundle: Bundle) -> None:
    from edge_runtime.sessions import check_runtime

    with pytest.raises(IncompatibleVersionError, match=r"expected 99\.0, got"):
        check_runtime("99.0")


def test_images_are_read_as_they_are(tmp_path: Path) -> None:
    raw = RawInput("uint8", (4, 6), 0, 255, "")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 6)).astype(np.uint8)
    for place, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{place}.png")
    (tmp_path / "notes.txt").write_text("no image")
    names, samples = read_samples(tmp_path, raw)
    assert names == ["0.png", "1.png", "2.png"]
    np.testing.assert_array_equal(samples, pixels)
    with pytest.raises(SampleShapeError, match=r"6 x 4.*4 x 4|4 x 4.*6 x 4"):
        read_samples(tmp_path, replace(raw, shape=(4, 4)))
    (tmp_path / "bad.png").write_bytes(b"no image at all")
    with pytest.raises(InputError, match=r"bad\.png"):
        read_samples(tmp_path, raw)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"])
def test_unreadable_arrays_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(InputError):
        read_samples(tmp_path / "x.npy", FLOATS)


def test_a_device_process_loads_no_training_library(release: Release, support: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "support.npy", support)
    code = (
        "import sys, numpy; from edge_runtime import Bundle\n"
        f"bundle = Bundle.open({str(release.bundle)!r}, trusted={str(release.trusted)!r})\n"
        f"x = numpy.load({str(tmp_path / 'support.npy')!r})\n"
        "print(bundle.personalize(x).predict(x[:1])[0])\n"
        "print([name for name in ('torch', 'onnx', 'onnxscript', 'sympy', 'paho', 'amqtt', 'trainer', 'export') if name in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root).stdout.split("\n")
    assert lines[0] in "0123456789"
    assert lines[1] == "[]"
