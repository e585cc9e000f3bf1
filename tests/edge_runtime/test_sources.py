from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import Bundle
from edge_runtime.json_lines import json_batches
from edge_runtime.sources import NamedBatch, Source, batches
from protocol.errors import EmptySupportSetError, InputError, SampleDtypeError, SampleShapeError
from tests.edge_runtime.tiny import RAW, raw_samples

SAMPLES = raw_samples(600, seed=4)


def joined(pieces: Iterator[NamedBatch]) -> tuple[list[str], np.ndarray]:
    """Return all names and samples, every batch being of 256 or less."""
    found = list(pieces)
    assert all(0 < len(piece.samples) <= 256 for piece in found)
    return [name for piece in found for name in piece.names], np.concatenate([piece.samples for piece in found])


def generator(samples: np.ndarray) -> Iterator[np.ndarray]:
    yield from samples


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Source]:
    folder = tmp_path / "folder"
    folder.mkdir()
    np.save(tmp_path / "all.npy", SAMPLES)
    np.savez(tmp_path / "one.npz", SAMPLES)
    np.savez(tmp_path / "named.npz", samples=SAMPLES, labels=np.zeros(600))
    np.save(folder / "a.npy", SAMPLES[:500])
    np.savez(folder / "b.npz", SAMPLES[500:599])
    np.save(folder / "c.npy", SAMPLES[599])  # a single sample without a first axis
    (folder / "notes.txt").write_text("not a sample")
    files = {name: tmp_path / name for name in ("all.npy", "one.npz", "named.npz", "folder")}
    mixed = iter([SAMPLES[0], SAMPLES[1:400], *SAMPLES[400:]])
    return {
        **files,
        "text": str(tmp_path / "all.npy"),
        "array": SAMPLES,
        "list": list(SAMPLES),
        "samples": generator(SAMPLES),
        "mixed": mixed,
    }


@pytest.mark.parametrize("name", ["all.npy", "one.npz", "named.npz", "folder", "text", "array", "list", "samples", "mixed"])
def test_every_source_gives_the_same_samples(sources: dict[str, Source], name: str) -> None:
    names, samples = joined(batches(sources[name], RAW))
    np.testing.assert_array_equal(samples, SAMPLES)
    assert len(set(names)) == 600
    assert samples.dtype == np.uint8


def test_every_source_makes_the_same_classifier(bundle: Bundle, sources: dict[str, Source]) -> None:
    expected = bundle.personalize(SAMPLES).logits(SAMPLES[:20])
    for name in ("folder", "named.npz", "samples"):
        np.testing.assert_allclose(bundle.personalize(sources[name]).logits(SAMPLES[:20]), expected, rtol=1e-5, atol=1e-5)


def test_an_endless_source_is_read_a_batch_at_a_time() -> None:
    seen = 0

    def endless() -> Iterator[np.ndarray]:
        nonlocal seen
        while True:
            seen += 1
            yield SAMPLES[0]

    stream = batches(endless(), RAW)
    next(stream)
    assert seen == 256


def test_images_are_read_from_a_folder(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for place in range(3):
        pillow.fromarray(SAMPLES[place]).save(tmp_path / f"{place}.png")
    names, samples = joined(batches(tmp_path, RAW))
    assert names == ["0.png", "1.png", "2.png"]
    np.testing.assert_array_equal(samples, SAMPLES[:3])
    pillow.fromarray(np.zeros((3, 3), np.uint8)).save(tmp_path / "3.png")
    with pytest.raises(SampleShapeError, match=r"3\.png.*2 x 2 pixels.*3 x 3"):
        joined(batches(tmp_path, RAW))


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (3, InputError),
        ([3], SampleDtypeError),
        ([np.zeros((3, 3), np.uint8)], SampleShapeError),
        (np.array(3, np.uint8), SampleShapeError),
        (Path("nowhere"), InputError),
    ],
)
def test_what_holds_no_samples_is_refused(source: Source, error: type[InputError]) -> None:
    with pytest.raises(error):
        list(batches(source, RAW))


@pytest.mark.parametrize("source", [[], SAMPLES[:0], iter([])])
def test_an_empty_support_set_is_refused(bundle: Bundle, source: Source) -> None:
    with pytest.raises(EmptySupportSetError, match="about 8 samples"):
        bundle.personalize(source)


def test_an_archive_of_several_arrays_must_say_which(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=SAMPLES, b=SAMPLES)
    with pytest.raises(InputError, match="one called samples"):
        list(batches(tmp_path / "two.npz", RAW))


def test_json_lines_are_read() -> None:
    lines = b'[[0, 1], [2, 3]]\n\n{"sample": "b", "values": [[4, 5], [6, 7]]}\n'
    names, samples = joined(json_batches(io.BytesIO(lines), RAW))
    assert names == ["0", "b"]
    np.testing.assert_array_equal(samples, np.arange(8, dtype=np.uint8).reshape(2, 2, 2))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense", "line 1 is no sample"),
        (b"[[0, 1], [2]]", "line 1 is no sample"),
        (b'{"values": [[0, 1], [2, 3]]}', "line 1 is no sample"),
        (b"[[0, NaN], [2, 3]]", "line 1 is no sample"),
        (b"[[0, 1], [2, 300]]", "raw range"),
        (b"[[0, 1.5], [2, 3]]", "dtype"),
        (b"[0, 1]", "shape"),
        (b'[["a", "b"], ["c", "d"]]', "dtype"),
    ],
)
def test_a_bad_line_is_named(line: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        list(json_batches(io.BytesIO(line + b"\n"), RAW))
