"""What a source is: names, kinds, prefixes, options, functions of one's own; and arrays in .npz files."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import DatasetError, InputError
from trainer.data.dataset import Dataset
from trainer.data.datasets import accepted, load_dataset
from trainer.data.sources import memory
from trainer.data.sources.registry import KINDS


def save_npz(path: Path, **changes: np.ndarray) -> Path:
    arrays = {"samples": np.zeros((4, 3), np.float32), "labels": np.array([0, 1, 1, 0])} | changes
    np.savez(path, **arrays)  # type: ignore[arg-type] # numpy's stub takes the names for its own options
    return path


def test_digits_are_raw() -> None:
    dataset = load_dataset("digits")
    assert dataset.samples.shape == (1797, 8, 8)
    assert dataset.samples.dtype == np.uint8
    assert dataset.samples.max() == 16


@pytest.mark.parametrize("source", ["nonsense", "/nowhere/at/all", "x.npz", "", " ", "a\0b", "a" * 5000, "cifra10:/data/x"])
def test_an_unknown_source_lists_what_is_accepted(source: str) -> None:
    with pytest.raises(DatasetError, match="data set not found") as caught:
        load_dataset(source)
    assert accepted() in str(caught.value)
    assert all(f"{name}:PATH" in accepted() for name in KINDS)


def test_a_folder_of_no_known_kind_lists_what_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is no data set that is known here") as caught:
        load_dataset(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert accepted() in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_forced_kind_says_what_it_misses(kind: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="data set not found"):
        load_dataset(f"{kind}:{tmp_path / 'absent'}")
    with pytest.raises(DatasetError) as caught:
        load_dataset(f"{kind}:{tmp_path}")
    assert str(tmp_path) in str(caught.value)


def test_a_relative_path_is_looked_for_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    save_npz(tmp_path / "own.npz")
    assert load_dataset("own.npz").name == "own"
    assert load_dataset("npz:own.npz").name == "own"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("size=64", "takes other options"),
        ("colour=1", "is unknown"),
        ("size=0", "size was not understood"),
        ("size=64x", "size was not understood"),
        ("size=9999", "size was not understood"),
        ("mode=CMYK", "mode was not understood"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: str, word: str) -> None:
    with pytest.raises(DatasetError, match=word):
        load_dataset(f"{save_npz(tmp_path / 'own.npz')}?{options}")


def test_npz_is_read_and_checked(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "own.npz", classes=np.array(["no", "yes"]))
    dataset = load_dataset(str(path))
    assert dataset.classes == ("no", "yes")
    assert dataset.sample_shape == (3,)
    np.savez(path, samples=np.zeros((4, 3)))
    with pytest.raises(DatasetError, match="lacks arrays"):
        load_dataset(str(path))
    path.write_bytes(b"PK nonsense")
    with pytest.raises(DatasetError, match="cannot be read"):
        load_dataset(str(path))


def test_npz_may_hold_domains(tmp_path: Path) -> None:
    domains = np.array([0, 0, 1, 1], np.uint8)
    dataset = load_dataset(str(save_npz(tmp_path / "own.npz", domains=domains, domain_names=np.array(["day", "night"]))))
    assert dataset.domain_names == ("day", "night")
    assert dataset.domains is not None
    assert dataset.domains.tolist() == [0, 0, 1, 1]
    assert load_dataset(str(save_npz(tmp_path / "own.npz", domains=domains))).domain_names == ("0", "1")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"samples": np.full((4, 3), np.nan, np.float32)}, "NaN"),
        ({"samples": np.zeros((4, 3))}, "wrong dtype"),
        ({"samples": np.zeros((5, 3), np.uint8)}, "wrong shape"),
        ({"samples": np.zeros(4, np.uint8)}, "wrong shape"),
        ({"labels": np.zeros(4)}, "labels have the wrong form"),
        ({"labels": np.array([0, 1, 1, 2**40])}, "cannot be told apart|outside the classes"),
        ({"domains": np.zeros(4)}, "domains have the wrong form"),
        ({"domains": np.zeros(3, np.int64)}, "domains do not fit"),
    ],
)
def test_wrong_arrays_are_named(tmp_path: Path, changes: dict[str, np.ndarray], word: str) -> None:
    with pytest.raises(DatasetError, match=word):
        load_dataset(str(save_npz(tmp_path / "own.npz", **changes)))


def test_arrays_that_do_not_fit_in_memory_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMORY_LIMIT", 100)
    with pytest.raises(DatasetError, match=r"own.npz is too large for memory.*save fewer samples"):
        load_dataset(str(save_npz(tmp_path / "own.npz")))


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("own_sources")
    monkeypatch.setitem(sys.modules, "own_sources", module)
    return module


def test_a_function_may_return_a_data_set_or_a_pair(own_module: types.ModuleType) -> None:
    made = Dataset("made", np.zeros((2, 1), np.uint8), np.array([0, 1]), ("a", "b"), 0, 255)
    own_module.whole = lambda: made  # type: ignore[attr-defined] # a module of the test's own
    own_module.pair = lambda: (np.zeros((3, 2), np.uint8), [0, 1, 1])  # type: ignore[attr-defined]
    assert load_dataset("own_sources:whole") is made
    dataset = load_dataset("function:own_sources:pair")
    assert (dataset.name, dataset.classes, dataset.labels.tolist()) == ("pair", ("0", "1"), [0, 1, 1])


def fails() -> None:
    raise KeyError("mine")


def refuses() -> None:
    raise InputError("sensor is off")


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (None, "has no function load"),
        (3, "has no function load"),
        (fails, "failed: got KeyError"),
        (refuses, "sensor is off"),
        (lambda: 3, "returned something else"),
        (lambda: (1, 2, 3), "returned something else"),
        (lambda: (np.zeros((2, 1)), [0, 1]), "wrong dtype"),
        (lambda: Dataset("made", np.zeros((2, 1)), np.array([0, 1]), ("a", "b"), 0, 1), "wrong dtype"),
    ],
)
def test_a_function_that_gives_no_data_set_is_named(own_module: types.ModuleType, function: object, word: str) -> None:
    own_module.load = function  # type: ignore[attr-defined] # a module of the test's own
    with pytest.raises(InputError, match=word):
        load_dataset("own_sources:load")


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatasetError, match=r"module no_such_module cannot be imported.*PYTHONPATH"):
        load_dataset("no_such_module:load")
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('early')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DatasetError, match="RuntimeError: early"):
        load_dataset("broken_module:load")
    with pytest.raises(DatasetError, match="function was not understood"):
        load_dataset("function:no function")
