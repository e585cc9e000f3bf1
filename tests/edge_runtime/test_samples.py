from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_runtime.samples import SampleGate, check_samples, read_samples
from protocol.errors import (
    InputError,
    MissingExtraError,
    SampleDtypeError,
    SampleNotFiniteError,
    SampleRangeError,
    SampleShapeError,
)
from protocol.manifest import RawInput

GREY = RawInput("uint8", (3, 2), 0.0, 255.0, "grey image")
COLOUR = RawInput("uint8", (3, 2, 3), 0.0, 255.0, "RGB image")
PLANES = RawInput("uint8", (3, 4, 2), 0.0, 255.0, "RGB image, channels first")
NUMBERS = RawInput("float32", (4,), -1.0, 1.0, "numbers")


@pytest.mark.parametrize("samples", [np.zeros((5, 3, 2), np.uint8), np.zeros((0, 3, 2), np.uint8)])
def test_right_samples_pass(samples: np.ndarray) -> None:
    check_samples(samples, GREY)


@pytest.mark.parametrize(
    ("samples", "error"),
    [
        (np.zeros((5, 3, 2), np.float32), SampleDtypeError),
        (np.full((5, 3, 2), -1, np.int8), SampleRangeError),
        (np.full((5, 3, 2), 256, np.int64), SampleRangeError),
        (np.zeros((5, 3, 2), bool), SampleDtypeError),
        (np.zeros((5, 3, 2), complex), SampleDtypeError),
        (np.zeros((5, 3, 2), object), SampleDtypeError),
        (np.zeros((5, 2, 3), np.uint8), SampleShapeError),
        (np.zeros((5, 3, 2, 1), np.uint8), SampleShapeError),
        (np.zeros((), np.uint8), SampleShapeError),
        (np.full((5, 3, 2), np.nan), SampleNotFiniteError),
    ],
)
def test_wrong_samples_are_refused(samples: np.ndarray, error: type[InputError]) -> None:
    with pytest.raises(error):
        check_samples(samples, GREY)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    samples = np.zeros((5, 4), np.float32)
    samples[3, 2] = bad
    with pytest.raises(SampleNotFiniteError):
        check_samples(samples, NUMBERS)


@pytest.mark.parametrize("dtype", [">f4", np.float64, np.float16, np.int32, np.uint8])
def test_real_numbers_become_float32(dtype: str | type) -> None:
    samples = np.arange(20).reshape(5, 4).astype(dtype)
    accepted = SampleGate(NUMBERS).accept(samples)
    assert accepted.dtype == np.float32
    np.testing.assert_array_equal(accepted, np.arange(20).reshape(5, 4))


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16])
def test_integers_in_the_raw_range_become_bytes(dtype: type) -> None:
    accepted = SampleGate(GREY).accept(np.full((5, 3, 2), 100, dtype))
    assert accepted.dtype == np.uint8
    assert (accepted == 100).all()


def test_what_float32_cannot_hold_is_refused() -> None:
    with pytest.raises(SampleRangeError, match="1e\\+300"):
        SampleGate(NUMBERS).accept(np.full((2, 4), 1e300))


def test_huge_but_finite_numbers_pass() -> None:
    SampleGate(NUMBERS).accept(np.full((2, 4), 3e38, np.float32))  # their sum is infinite, they are not


def test_a_list_is_no_array() -> None:
    with pytest.raises(SampleDtypeError, match="numpy array"):
        check_samples([[0, 0], [0, 0]], GREY)  # type: ignore[arg-type]  # what a newcomer may pass


def test_a_single_sample_gets_a_hint() -> None:
    with pytest.raises(SampleShapeError, match="first axis"):
        check_samples(np.zeros((3, 2), np.uint8), GREY)


def test_the_hint_names_the_raw_range() -> None:
    with pytest.raises(SampleDtypeError, match="0 to 255"):
        check_samples(np.zeros((5, 3, 2), np.float32), GREY)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_an_npy_file_is_read(tmp_path: Path, count: int) -> None:
    expected = np.arange(count * 6, dtype=np.uint8).reshape(count, 3, 2)
    np.save(tmp_path / "samples.npy", expected)
    names, samples = read_samples(tmp_path / "samples.npy", GREY)
    assert names == [str(place) for place in range(count)]
    np.testing.assert_array_equal(samples, expected)


def test_a_file_in_column_order_reads_the_same(tmp_path: Path) -> None:
    expected = np.asfortranarray(np.arange(30, dtype=np.uint8).reshape(5, 3, 2))
    np.save(tmp_path / "samples.npy", expected)
    np.testing.assert_array_equal(read_samples(tmp_path / "samples.npy", GREY)[1], expected)


@pytest.mark.parametrize("content", [b"", b"nothing numpy wrote", b"\x93NUMPY\x01\x00v\x00{'descr'"])
def test_a_damaged_npy_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "samples.npy").write_bytes(content)
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path / "samples.npy", GREY)


def test_a_header_that_claims_too_much_is_refused_without_memory(tmp_path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 1000, 1000), }"
    padded = header.ljust(117) + b"\n"
    (tmp_path / "samples.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + b"few bytes")
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path / "samples.npy", GREY)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="cannot be read"):
        read_samples(tmp_path / "samples.npy", GREY)


def test_a_single_number_is_no_set_of_samples(tmp_path: Path) -> None:
    np.save(tmp_path / "samples.npy", np.float32(3))
    with pytest.raises(SampleShapeError):
        read_samples(tmp_path / "samples.npy", NUMBERS)


@pytest.mark.parametrize("name", ["absent.npy", "absent", "absent.png", "notes.txt"])
def test_what_holds_no_samples_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").write_text("no samples")
    with pytest.raises(InputError):
        read_samples(tmp_path / name, GREY)


def test_an_empty_folder_holds_no_samples(tmp_path: Path) -> None:
    names, samples = read_samples(tmp_path, GREY)
    assert names == []
    assert samples.shape == (0, 3, 2)


def save_image(path: Path, pixels: np.ndarray) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    image.fromarray(pixels).save(path)


def test_images_come_sorted_by_name(tmp_path: Path) -> None:
    first, second = np.full((3, 2), 10, np.uint8), np.full((3, 2), 20, np.uint8)
    save_image(tmp_path / "b.png", second)
    save_image(tmp_path / "a.PNG", first)
    (tmp_path / "notes.txt").write_text("not an image")
    names, samples = read_samples(tmp_path, GREY)
    assert names == ["a.PNG", "b.png"]
    np.testing.assert_array_equal(samples, np.stack([first, second]))


def test_a_colour_image_turns_grey_or_stays(tmp_path: Path) -> None:
    pixels = np.full((3, 2, 3), 77, np.uint8)
    save_image(tmp_path / "a.png", pixels)
    np.testing.assert_array_equal(read_samples(tmp_path / "a.png", GREY)[1], pixels[None, ..., 0])
    np.testing.assert_array_equal(read_samples(tmp_path / "a.png", COLOUR)[1], pixels[None])


def test_colour_images_become_planes_where_the_bundle_has_channels_first(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 2, 3)).astype(np.uint8)
    save_image(tmp_path / "a.png", pixels)
    np.testing.assert_array_equal(read_samples(tmp_path / "a.png", PLANES)[1], pixels.transpose(2, 0, 1)[None])


def test_an_image_of_another_size_is_refused(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", np.zeros((2, 3), np.uint8))
    with pytest.raises(SampleShapeError, match="2 x 3 pixels"):
        read_samples(tmp_path / "a.png", GREY)


def test_an_image_of_sixteen_bits_is_not_clipped(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", np.full((3, 2), 4000, np.uint16))
    with pytest.raises(InputError, match="too many bits"):
        read_samples(tmp_path / "a.png", GREY)


def test_a_damaged_image_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="needs Pillow")
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\nand nothing more")
    with pytest.raises(InputError, match="as an image"):
        read_samples(tmp_path / "a.png", GREY)


def test_a_bundle_for_numbers_takes_no_images(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", np.zeros((3, 2), np.uint8))
    with pytest.raises(InputError, match=r"\.npy"):
        read_samples(tmp_path / "a.png", NUMBERS)


def test_images_without_pillow_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"fedtailor\[edge\]"):
        read_samples(tmp_path / "a.png", GREY)
