from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import Bundle
from edge_runtime.distribution_signature import SignatureMeter, SignatureParts, freeze, normalise
from protocol.errors import BundleError, EmptySupportSetError, InputError, LabelError, NotAllowedError, SampleShapeError
from protocol.keys import PrivateKey
from protocol.manifest import RawInput
from tests.edge_runtime.tiny import features, raw_samples, write_tiny

GREY = RawInput("uint8", (6, 5), 0.0, 255.0, "grey")
COLOUR = RawInput("uint8", (6, 5, 3), 0.0, 255.0, "colour")
NUMBERS = RawInput("float32", (7,), -1.0, 1.0, "numbers")
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (40, 6, 5)).astype(np.uint8)
PIXELS = SignatureParts(features=False)


def measured(parts: SignatureParts, raw: RawInput, samples: np.ndarray, **more: np.ndarray) -> np.ndarray:
    meter = SignatureMeter(parts, raw, 3)
    meter.add(samples, **more)
    return meter.measure()


def test_pixel_statistics_are_those_of_the_definition() -> None:
    found, scaled = measured(PIXELS, GREY, IMAGES), IMAGES / 255.0
    expected = [scaled.mean(), scaled.std(), scaled.mean(axis=(1, 2)).std()]
    np.testing.assert_allclose(found[:3], expected, rtol=1e-9)
    np.testing.assert_allclose(found[3:11], np.histogram(scaled, 8, (0, 1))[0] / scaled.size, rtol=1e-9)
    np.testing.assert_allclose(found[11], np.abs(np.diff(scaled, axis=1)).mean(), rtol=1e-9)
    np.testing.assert_allclose(found[12], np.abs(np.diff(scaled, axis=2)).mean(), rtol=1e-9)
    assert len(found) == 29
    np.testing.assert_allclose(found[13], scaled.mean(axis=0)[:2, :2].mean(), rtol=1e-9)


def test_feature_statistics_are_mean_and_deviation() -> None:
    rows = RANDOM.standard_normal((40, 6))
    found = measured(SignatureParts(pixels=False), GREY, IMAGES, features=rows)
    np.testing.assert_allclose(found, [*rows.mean(axis=0), *rows.std(axis=0)], rtol=1e-9)


@pytest.mark.parametrize("size", [1, 7, 40])
def test_batches_do_not_matter(size: int) -> None:
    rows, meter = RANDOM.standard_normal((40, 6)), SignatureMeter(SignatureParts(), GREY, 3)
    for start in range(0, 40, size):
        meter.add(IMAGES[start : start + size], rows[start : start + size])
    np.testing.assert_allclose(meter.measure(), measured(SignatureParts(), GREY, IMAGES, features=rows), rtol=1e-9)


def test_colours_count_as_grey_and_numbers_have_no_neighbours() -> None:
    np.testing.assert_allclose(measured(PIXELS, COLOUR, np.repeat(IMAGES[..., None], 3, axis=3)), measured(PIXELS, GREY, IMAGES), rtol=1e-9)
    assert len(measured(PIXELS, NUMBERS, RANDOM.uniform(-1, 1, (9, 7)).astype(np.float32))) == 11


def test_labels_are_refused_where_samples_alone_are_allowed() -> None:
    with pytest.raises(NotAllowedError, match="samples alone"):
        measured(PIXELS, GREY, IMAGES, labels=np.zeros(40, np.int64))


def test_class_frequencies_are_a_setting() -> None:
    parts = SignatureParts(features=False, pixels=False, class_frequencies=True)
    labels = np.array([0] * 10 + [2] * 30)
    np.testing.assert_allclose(measured(parts, GREY, IMAGES, labels=labels), [0.25, 0.0, 0.75])
    with pytest.raises(InputError, match="need labels"):
        measured(parts, GREY, IMAGES)
    with pytest.raises(LabelError, match="0 to 2"):
        measured(parts, GREY, IMAGES, labels=np.full(40, 3))


def test_frozen_constants_normalise() -> None:
    tables = [RANDOM.standard_normal(9) * 3 + 5 for _ in range(50)]
    block = freeze(PIXELS, tables)
    scores = np.stack([normalise(each, block) for each in tables])
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose((scores**2).sum(axis=1).mean(), 9, rtol=0.1)  # whatever the length
    assert np.abs(normalise(np.full(9, 1e9), block)).max() == pytest.approx(4 * 3 / math.sqrt(9))
    with pytest.raises(SampleShapeError):
        normalise(np.zeros(8), block)


def test_a_constant_entry_does_not_blow_up() -> None:
    block = freeze(PIXELS, [np.ones(4), np.ones(4)])
    np.testing.assert_array_equal(normalise(np.ones(4), block), np.zeros(4))


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(EmptySupportSetError):
        SignatureMeter(PIXELS, GREY, 3).measure()
    with pytest.raises(InputError):
        SignatureParts(features=False, pixels=False)
    with pytest.raises(InputError, match="features"):
        measured(SignatureParts(), GREY, IMAGES)


def test_a_bundle_measures_any_source(bundle: Bundle, tmp_path: Path, release_key: PrivateKey) -> None:
    with pytest.raises(BundleError, match="no distribution signature"):
        bundle.distribution_signature(raw_samples(9))
    supports = [raw_samples(300, seed=seed) for seed in range(3)]
    tables = [measured(SignatureParts(), bundle.manifest.raw_input, each, features=features(each)) for each in supports]
    block = freeze(SignatureParts(), tables)
    opened = Bundle.open(write_tiny(tmp_path / "signed", release_key, distribution_signature=block), release_key.public)
    for support, table in zip(supports, tables, strict=True):
        np.testing.assert_allclose(opened.distribution_signature(iter(support)), normalise(table, block), atol=1e-3)
    with pytest.raises(NotAllowedError):
        opened.distribution_signature(supports[0], np.zeros(300, np.int64))
