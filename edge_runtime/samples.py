"""Local samples: read from files, and compared with what a bundle says a raw sample is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from protocol.arrays import read_array
from protocol.errors import InputError, MissingExtraError, SampleDtypeError, SampleNotFiniteError, SampleRangeError, SampleShapeError
from protocol.manifest import RawInput

Array = NDArray[np.generic]
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm"})
DEEP_MODES = ("I", "F")  # first letters of Pillow's names for 16 and 32 bits a pixel


class SampleGate:
    """What stands in front of every graph: samples as the bundle takes them, or an error that says what is wrong.

    Of another dtype than the raw one, these are cast: for raw float32 any real numbers, for raw uint8 integers of any width
    that lie in the raw range. Nothing is scaled, and floats never become integers.

    Args:
        raw: What the bundle expects.
    """

    def __init__(self, raw: RawInput) -> None:
        self.raw = raw
        self.dtype = np.dtype(raw.dtype)
        self.shape = raw.shape
        limits: Any = np.iinfo(cast("Any", self.dtype)) if np.issubdtype(self.dtype, np.integer) else None
        self._cannot_be_wrong = limits is not None and raw.minimum <= limits.min and limits.max <= raw.maximum

    def accept(self, samples: Array) -> Array:
        """Return samples (N, *shape) in the raw dtype.

        Args:
            samples: (N, *shape).

        Raises:
            SampleNotFiniteError: NaN or infinity.
            SampleDtypeError: No array, or a dtype that is not cast.
            SampleShapeError: Another shape.
            SampleRangeError: Integers outside the raw range, or numbers beyond the raw dtype; of floats only the sensor knows.
        """
        if type(samples) is np.ndarray and samples.dtype is self.dtype and samples.shape[1:] == self.shape and self._cannot_be_wrong:
            return samples
        return self._checked(samples)

    def _checked(self, samples: Array) -> Array:
        """Return samples in the raw dtype after every check."""
        if not isinstance(samples, np.ndarray):
            raise SampleDtypeError("samples are no array", expected=f"a numpy array of {self.raw.dtype}", got=type(samples).__name__)
        is_floating = np.issubdtype(samples.dtype, np.floating)
        if is_floating and not _is_finite(samples):
            raise SampleNotFiniteError("samples hold NaN or infinity", expected="finite numbers", hint="look at the sensor or the file")
        if samples.dtype != self.dtype and not self._can_cast(samples.dtype):
            hint = f"feed raw values, {self.raw.minimum:g} to {self.raw.maximum:g}, without normalising them"
            raise SampleDtypeError("samples have the wrong dtype", expected=self.raw.dtype, got=str(samples.dtype), hint=hint)
        self._check_shape(samples)
        _check_range(samples, self.raw)
        return samples if samples.dtype == self.dtype else self._cast(samples)

    def _can_cast(self, dtype: np.dtype[np.generic]) -> bool:
        """Tell whether a dtype is among those that are cast."""
        return np.issubdtype(dtype, np.integer) or (self.dtype.kind == "f" and np.issubdtype(dtype, np.floating))

    def _cast(self, samples: Array) -> Array:
        """Return samples in the raw dtype."""
        with np.errstate(over="ignore"):
            cast_samples = samples.astype(self.dtype)
        if self.dtype.kind == "f" and not _is_finite(cast_samples):
            expected, got = f"numbers that {self.raw.dtype} can hold", f"{np.abs(samples).max():g}"
            raise SampleRangeError("samples are too large", expected=expected, got=got, hint="look at the sensor or the file")
        return cast_samples

    def _check_shape(self, samples: Array) -> None:
        """Refuse another shape."""
        if samples.ndim != 1 + len(self.shape) or samples.shape[1:] != self.shape:
            expected = f"(N, {', '.join(map(str, self.shape))})"
            hint = "add a first axis for a single sample" if samples.shape == self.shape else "resize or crop the samples first"
            raise SampleShapeError("samples have the wrong shape", expected=expected, got=str(samples.shape), hint=hint)


def check_samples(samples: Array, raw: RawInput) -> None:
    """Refuse samples that the bundle's graphs were not made for; see ``SampleGate.accept``.

    Args:
        samples: (N, *shape).
        raw: What the bundle expects.
    """
    SampleGate(raw).accept(samples)


def _is_finite(samples: Array) -> bool:
    """Tell whether no entry is NaN or infinite: the sum would show it, unless it overflows by itself."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(samples.sum())
    return math.isfinite(total) or bool(np.isfinite(samples).all())


def _check_range(samples: Array, raw: RawInput) -> None:
    """Refuse integers outside the raw range where the dtype could leave it."""
    if not np.issubdtype(samples.dtype, np.integer) or samples.size == 0 or raw.dtype == "float32":
        return
    limits: Any = np.iinfo(cast("Any", samples.dtype))
    if raw.minimum <= limits.min and limits.max <= raw.maximum:
        return
    low, high = int(samples.min()), int(samples.max())
    if low < raw.minimum or high > raw.maximum:
        hint = "feed values as the sensor of the training data gave them"
        raise SampleRangeError(
            "samples leave the raw range", expected=f"{raw.minimum:g} to {raw.maximum:g}", got=f"{low} to {high}", hint=hint
        )


def read_samples(path: Path, raw: RawInput) -> tuple[list[str], Array]:
    """Return names and samples (N, *shape) of an ``.npy`` file, an image file, or a folder of image files.

    Images must have the size that the bundle expects; they are turned to grey or RGB, nothing else.

    Raises:
        InputError: Nothing there to read, it cannot be read, or samples do not fit; see ``check_samples``.
        MissingExtraError: Images need Pillow.
    """
    if path.suffix == ".npy":
        samples = read_array(path)
        check_samples(samples, raw)  # before anything as long as the header says is made
        return [str(place) for place in range(len(samples))], samples
    if path.is_dir():
        paths = sorted(each for each in path.iterdir() if each.suffix.lower() in IMAGE_SUFFIXES)
    elif path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
        paths = [path]
    else:
        raise InputError("no samples found", expected="an .npy file, an image, or a folder of images", got=str(path))
    if not paths:
        return [], np.empty((0, *raw.shape), np.dtype(raw.dtype))
    return [each.name for each in paths], np.stack([read_image(each, raw) for each in paths])


def read_image(path: Path, raw: RawInput) -> Array:
    """Return one image as a raw sample."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading images needs Pillow", hint='pip install "fedtailor[edge]", or pass an .npy file') from error
    height, width, channels = _image_layout(raw)
    try:
        with Image.open(path) as image:
            if image.size != (width, height):
                got = f"{image.size[0]} x {image.size[1]}"
                raise SampleShapeError(
                    f"{path.name} has the wrong size", expected=f"{width} x {height} pixels", got=got, hint="resize it first"
                )
            if image.mode[0] in DEEP_MODES:  # Pillow would clip these to 255 without a word
                raise InputError(f"{path.name} has too many bits", expected="8 bits a channel", got=image.mode, hint="convert it first")
            pixels = np.asarray(image.convert("RGB" if channels == 3 else "L"))
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as an image", got=str(error)[:200]) from error
    return pixels.transpose(2, 0, 1) if channels == 3 and not _channels_last(raw.shape) else pixels.reshape(raw.shape)


def _channels_last(shape: tuple[int, ...]) -> bool:
    """Tell whether images of a shape have their channels last, as image files do."""
    return len(shape) == 3 and shape[2] in (1, 3)


def _image_layout(raw: RawInput) -> tuple[int, int, int]:
    """Return height, width and channels of the images that a bundle takes; channels may stand first or last.

    Raises:
        InputError: A raw sample is no 8-bit image.
    """
    shape = raw.shape
    if raw.dtype == "uint8" and (raw.minimum, raw.maximum) == (0.0, 255.0):
        if len(shape) == 2:
            return shape[0], shape[1], 1
        if _channels_last(shape):
            return shape[0], shape[1], shape[2]
        if len(shape) == 3 and shape[0] in (1, 3):
            return shape[1], shape[2], shape[0]
    expected = f"{raw.dtype} samples of shape {shape}, {raw.minimum:g} to {raw.maximum:g}"
    raise InputError("this bundle does not take images", expected=expected, hint="pass an .npy file")
