"""Files that somebody else made: every damaged, hostile or foreign array is one error of ours, at once."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import personal_folder as folder_module
from edge_runtime.bundle import Bundle
from edge_runtime.classifier import Classifier
from edge_runtime.samples import read_samples
from protocol.arrays import read_array, read_arrays
from protocol.errors import InputError
from protocol.files import write_atomically
from protocol.manifest import RawInput

RAW = RawInput("uint8", (2, 2), 0, 255, "")


def npy(header: str) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def zipped(name: str, content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, content)

    return write


def written(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "empty": written(b""),
    "unclosed header": written(npy("{'descr': '|u1', 'shape': (1,")),
    "huge shape": written(npy("{'descr': '|u1', 'fortran_order': False, 'shape': (9999999999999999999999, 2, 2), }")),
    "truth value as a size": written(npy("{'descr': '|u1', 'fortran_order': False, 'shape': (True, 2, 2), }")),
    "a thousand million empty rows": written(npy("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000, 0), }")),
    "objects": written(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 2, 2), }") + b"x" * 100),
    "a zip": zipped("a.npy", b"nonsense"),
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_array_file_is_an_input_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.npy"
    HOSTILE[name](path)
    with pytest.raises(InputError) as caught:
        read_samples(path, RAW)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError):
        read_array(path)


@pytest.mark.parametrize("name", [*HOSTILE, "claims too much", "unclosed member", "text member"])
def test_a_hostile_archive_is_an_input_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.npz"
    claims = npy("{'descr': '<f8', 'fortran_order': False, 'shape': (8000000000000, 1), }")
    more = {
        "claims too much": zipped("samples.npy", claims),
        "unclosed member": zipped("samples.npy", npy("{'descr': ")),
        "text member": zipped("notes.txt", b"hello"),
    }
    (HOSTILE | more)[name](path)
    with pytest.raises(InputError):
        read_arrays(path)


@pytest.mark.parametrize("fails_at", [1, 2, 3])
def test_an_interrupted_save_leaves_the_old_classifier_or_the_new(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    generator = np.random.default_rng(0)
    samples = generator.integers(0, 256, (20, *bundle.manifest.raw_input.shape)).astype(np.uint8)
    old, new = bundle.personalize(samples[:3]), bundle.personalize(samples[3:])
    old.save(tmp_path / "mine")
    real, calls = write_atomically, []

    def failing(path: Path, data: bytes) -> None:
        calls.append(path)
        if len(calls) == fails_at:
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(folder_module, "write_atomically", failing)
    with pytest.raises(OSError, match="No space"):
        new.save(tmp_path / "mine")
    expected = old if fails_at < 3 else new
    np.testing.assert_array_equal(Classifier.open(tmp_path / "mine", bundle).logits(samples), expected.logits(samples))
    monkeypatch.setattr(folder_module, "write_atomically", real)
    new.save(tmp_path / "mine")
    np.testing.assert_array_equal(Classifier.open(tmp_path / "mine", bundle).logits(samples), new.logits(samples))
