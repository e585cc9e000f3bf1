"""Image files as one array: all of one mode and one size, sized up from their headers before any is decoded."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from protocol.errors import DatasetError, MissingExtraError
from trainer.data.sources.base import LoadOptions
from trainer.data.sources.files import entries
from trainer.data.sources.memory import check_fits

if TYPE_CHECKING:
    from PIL.Image import Image

# Only formats that Pillow decodes itself: for some others, such as EPS, it runs a program.
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")
SUFFIXES = frozenset({".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"})
GREY_MODES = ("1", "L", "LA", "La")
DEEP_MODES = ("I", "F")  # first letters of Pillow's names for 16 and 32 bits a pixel, which it would clip to 255
# What Pillow raises for damaged files; it documents only OSError.
PILLOW_FAULTS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
)


@dataclass(frozen=True)
class Form:
    """What every image is brought to: width and height in pixels, and ``L`` or ``RGB``."""

    size: tuple[int, int]
    mode: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one sample: (H, W) grey, (3, H, W) in colour."""
        width, height = self.size
        return (height, width) if self.mode == "L" else (3, height, width)


def image_files(folder: Path) -> list[Path]:
    """Return the images in a folder in the order of names; files of other kinds are left out."""
    return [path for path in entries(folder) if is_image(path)]


def is_image(path: Path) -> bool:
    """Return whether a path is an image file by its name."""
    return path.suffix.lower() in SUFFIXES and path.is_file()


def read_images(where: Path, paths: Sequence[Path], options: LoadOptions) -> NDArray[np.uint8]:
    """Return images as (N, H, W) or (N, 3, H, W) uint8.

    Images of another size are stretched.

    Args:
        where: Folder of the data set, for messages.
        paths: Image files, at least one.
        options: Wanted size and mode; what is left open follows from the images.

    Raises:
        DatasetError: A file is no image or damaged, or all together are too large for memory.
        MissingExtraError: Pillow is not installed.
    """
    with _pillow_warnings():
        form = _common_form(paths, options)
        check_fits(where, len(paths) * int(np.prod(form.shape)), f"ask for smaller images: --data '{where}?size=64'")
        samples = np.empty((len(paths), *form.shape), np.uint8)  # (N, *shape)
        for sample, path in zip(samples, paths, strict=True):
            with _opened(path) as image:
                sample[...] = _pixels(image, form)
    return samples


def _common_form(paths: Sequence[Path], options: LoadOptions) -> Form:
    """Return the wanted form, or the most common size and the mode that keeps all colours."""
    if options.size is not None and options.mode is not None:
        return Form(options.size, options.mode)
    sizes: Counter[tuple[int, int]] = Counter()
    modes: set[str] = set()
    for path in paths:
        with _opened(path) as image:
            sizes[image.size] += 1
            modes.add(image.mode)
    mode = "L" if modes.issubset(GREY_MODES) else "RGB"
    return Form(options.size or sizes.most_common(1)[0][0], options.mode or mode)


def _pixels(image: Image, form: Form) -> NDArray[np.uint8]:
    """Return one image in the wanted form."""
    from PIL.Image import Resampling

    converted = image.convert(form.mode)
    fitting = converted if converted.size == form.size else converted.resize(form.size, Resampling.BILINEAR)
    pixels = np.asarray(fitting)  # (H, W) or (H, W, 3)
    return pixels if form.mode == "L" else pixels.transpose(2, 0, 1)  # (H, W) or (3, H, W)


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """Give an image of which only the header was read; whatever Pillow finds wrong in the block names the file."""
    from PIL import Image

    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.mode[0] in DEEP_MODES:
                raise DatasetError(f"{path} has too many bits", expected="8 bits a channel", got=image.mode, hint="convert it first")
            yield image
    except (*PILLOW_FAULTS, Image.DecompressionBombError, Image.DecompressionBombWarning) as fault:
        got = f"{type(fault).__name__}: {str(fault)[:160]}"
        raise DatasetError(f"{path} cannot be read as an image", got=got, hint="fetch it again, or remove it") from fault


@contextmanager
def _pillow_warnings() -> Iterator[None]:
    """Silence what Pillow says of odd metadata, but refuse images that unpack to absurd sizes."""
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading images needs Pillow", hint='pip install "fedtailor[train]"') from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield
