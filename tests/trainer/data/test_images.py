"""Folders of image files: classes, domains, Tiny-ImageNet; sizes, modes, and files that are no images."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from protocol.errors import DatasetError, MissingExtraError
from trainer.data.datasets import load_dataset
from trainer.data.sources import memory


def write_image(path: Path, size: tuple[int, int] = (6, 4), mode: str = "RGB", seed: int = 0) -> np.ndarray:
    """Write a random image of width and height ``size`` and return its pixels."""
    width, height = size
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def test_a_folder_of_classes_becomes_planes(tmp_path: Path) -> None:
    pixels = [write_image(tmp_path / name, seed=seed) for seed, name in enumerate(["cat/1.png", "cat/2.BMP", "dog/1.ppm"])]
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "readme.txt").write_text("no class")
    (tmp_path / ".hidden").mkdir()
    for source in (str(tmp_path), f"images:{tmp_path}"):
        dataset = load_dataset(source)
        np.testing.assert_array_equal(dataset.samples, np.stack(pixels).transpose(0, 3, 1, 2))
        assert (dataset.name, dataset.classes, dataset.labels.tolist()) == (tmp_path.name, ("cat", "dog"), [0, 0, 1])
        assert dataset.domains is None


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "gif", "webp", "tif", "png", "bmp", "tga", "jp2"])
def test_every_usual_type_is_read(tmp_path: Path, suffix: str) -> None:
    write_image(tmp_path / f"a/1.{suffix}")
    write_image(tmp_path / f"b/1.{suffix.upper()}")
    assert load_dataset(str(tmp_path)).samples.shape == (2, 3, 4, 6)


def test_grey_images_have_no_axis_of_colours(tmp_path: Path) -> None:
    pixels = write_image(tmp_path / "a/1.png", mode="L")
    Image.fromarray(pixels > 127).save(tmp_path / "a" / "2.png")  # one bit a pixel
    write_image(tmp_path / "b/1.png", mode="L")
    dataset = load_dataset(str(tmp_path))
    assert dataset.samples.shape == (3, 4, 6)
    np.testing.assert_array_equal(dataset.samples[0], pixels)
    assert load_dataset(f"{tmp_path}?mode=RGB").samples.shape == (3, 3, 4, 6)
    write_image(tmp_path / "b/2.png")
    assert load_dataset(str(tmp_path)).samples.shape == (4, 3, 4, 6)
    assert load_dataset(f"{tmp_path}?mode=L").samples.shape == (4, 4, 6)


def test_palettes_and_transparency_become_colours(tmp_path: Path) -> None:
    write_image(tmp_path / "a/1.png")
    with Image.open(tmp_path / "a" / "1.png") as image:
        image.convert("P").save(tmp_path / "a" / "2.png", transparency=0)
        image.convert("RGBA").save(tmp_path / "b.png")
    (tmp_path / "b").mkdir()
    (tmp_path / "b.png").rename(tmp_path / "b" / "1.png")
    assert load_dataset(str(tmp_path)).samples.shape == (3, 3, 4, 6)


def test_the_most_common_size_wins_unless_one_is_asked_for(tmp_path: Path) -> None:
    for name, size in (("a/1.png", (9, 9)), ("a/2.png", (6, 4)), ("b/1.png", (6, 4))):
        write_image(tmp_path / name, size)
    assert load_dataset(str(tmp_path)).samples.shape == (3, 3, 4, 6)
    assert load_dataset(f"{tmp_path}?size=8").samples.shape == (3, 3, 8, 8)
    assert load_dataset(f"images:{tmp_path}?size=5x7&mode=L").samples.shape == (3, 7, 5)


def test_classes_with_numbers_for_names_are_in_numeric_order(tmp_path: Path) -> None:
    for name in ("10", "2", "0"):
        write_image(tmp_path / name / "1.png")
    assert load_dataset(str(tmp_path)).classes == ("0", "2", "10")


def test_train_and_val_are_merged_and_are_no_domains(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/1.png", "val/b/1.png"):
        write_image(tmp_path / name)
    dataset = load_dataset(str(tmp_path))
    assert (dataset.classes, dataset.labels.tolist(), dataset.domains) == (("a", "b"), [0, 1, 1], None)


def test_a_folder_of_domains_tells_each_samples_domain(tmp_path: Path) -> None:
    for name in ("sketch/dog/1.png", "photo/cat/1.png", "photo/dog/1.png", "photo/dog/2.png"):
        write_image(tmp_path / name)
    for source in (str(tmp_path), f"domains:{tmp_path}?size=6x4"):
        dataset = load_dataset(source)
        assert dataset.domains is not None
        assert (dataset.classes, dataset.domain_names) == (("cat", "dog"), ("photo", "sketch"))
        assert (dataset.labels.tolist(), dataset.domains.tolist()) == ([0, 1, 1, 1], [0, 0, 0, 1])
        assert dataset.samples.shape == (4, 3, 4, 6)


@pytest.mark.parametrize("kept", [0, 1, 20, 60])
@pytest.mark.parametrize("name", ["1.png", "1.jpg"])
def test_a_damaged_image_is_named(tmp_path: Path, kept: int, name: str) -> None:
    write_image(tmp_path / "a/0.png")
    write_image(tmp_path / "b" / name)
    path = tmp_path / "b" / name
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DatasetError, match="cannot be read as an image") as caught:
        load_dataset(str(tmp_path))
    assert str(path) in str(caught.value)


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    write_image(tmp_path / "a/1.png")
    (tmp_path / "b").mkdir()
    with pytest.raises(DatasetError, match="b holds no image"):
        load_dataset(str(tmp_path))


def test_images_with_many_bits_are_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "a/1.png")
    (tmp_path / "b").mkdir()
    Image.fromarray(np.full((4, 6), 300, np.uint16)).save(tmp_path / "b" / "1.png")
    with pytest.raises(DatasetError, match="too many bits"):
        load_dataset(str(tmp_path))


def test_an_image_that_unpacks_to_an_absurd_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "a/1.png")
    write_image(tmp_path / "b/1.png", (40, 40))
    for limit in (1000, 30):  # Pillow warns above its limit, and fails above twice of it
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(DatasetError, match=r"1.png cannot be read as an image: got DecompressionBomb"):
            load_dataset(str(tmp_path))


def test_a_folder_too_large_for_memory_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/1.png", "b/1.png"):
        write_image(tmp_path / name)
    monkeypatch.setattr(memory, "MEMORY_LIMIT", 2 * 3 * 4 * 6 - 1)
    with pytest.raises(DatasetError, match=r"too large for memory.*\?size=64"):
        load_dataset(str(tmp_path))
    assert load_dataset(f"{tmp_path}?size=2").samples.shape == (2, 3, 2, 2)


def test_missing_pillow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "a/1.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"fedtailor\[train\]"):
        load_dataset(str(tmp_path))


def write_tiny_imagenet(folder: Path) -> None:
    for wordnet_id in ("n02", "n01", "n03"):
        write_image(folder / f"train/{wordnet_id}/images/{wordnet_id}_0.JPEG", (8, 8))
    write_image(folder / "val/images/val_0.JPEG", (8, 8), mode="L")
    write_image(folder / "test/images/test_0.JPEG", (8, 8))
    (folder / "wnids.txt").write_text("n02\nn01\nn03\n")
    (folder / "words.txt").write_text("n01\tcrane, a bird\nn02\tcrane\nn03\tfrog, toad\nn04\tnever used\n")
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn03\t0\t32\t44\t62\n")


def test_tiny_imagenet_is_read_as_unpacked(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path)
    dataset = load_dataset(str(tmp_path))
    assert dataset.classes == ("crane (n02)", "crane (n01)", "frog")
    assert dataset.labels.tolist() == [0, 1, 2, 2]
    assert (dataset.name, dataset.samples.shape) == ("tiny-imagenet", (4, 3, 8, 8))
    assert load_dataset(f"tiny-imagenet:{tmp_path}?size=4").samples.shape == (4, 3, 4, 4)


@pytest.mark.parametrize("name", ["words.txt", "val/val_annotations.txt", "val/images/val_0.JPEG"])
def test_a_missing_part_of_tiny_imagenet_is_named(tmp_path: Path, name: str) -> None:
    write_tiny_imagenet(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DatasetError, match=name):
        load_dataset(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("wnids.txt", b"n01\nn01\n", "names a class twice"),
        ("wnids.txt", b"\xff\xfe\xfa", "expected a text file"),
        ("wnids.txt", b"n01\n", "line 1 is wrong"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn09\n", "line 1 is wrong"),
        ("val/val_annotations.txt", b"../../x.JPEG\tn01\n", "line 1 is wrong"),
        ("val/val_annotations.txt", b"\n\nval_0.JPEG", "is wrong"),
    ],
)
def test_wrong_lists_of_tiny_imagenet_are_named(tmp_path: Path, name: str, content: bytes, word: str) -> None:
    write_tiny_imagenet(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=word) as caught:
        load_dataset(str(tmp_path))
    assert "wnids.txt" in str(caught.value) or name in str(caught.value)
