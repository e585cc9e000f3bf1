"""Experiments in TOML files, and settings from plain values: what is right is read, what is wrong is named in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner

from fedtailor import main
from protocol.errors import DatasetError, InputError
from trainer.data.dataset import Dataset
from trainer.data.datasets import load_dataset
from trainer.experiments import Experiment, load_experiment
from trainer.methods.base import Task
from trainer.methods.registry import METHODS, method_settings
from trainer.settings import build_settings

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples" / "experiments").glob("*.toml"))
TASK = Task((28, 28), "uint8", 0.0, 255.0, tuple("0123456789"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_loads_and_its_variants_make_methods(path: Path) -> None:
    experiment = load_experiment(path)
    for name in (*experiment.methods, *experiment.variants):
        method, own = experiment.resolve(name)
        settings = method_settings(method, {**({"model": own.model} if own.model else {}), **own.methods[method]})
        settings.bind(TASK).phases()
        stated = experiment.variants.get(name, {}).get("settings", experiment.methods.get(name, {}))
        for key, value in stated.items():
            if not isinstance(value, Mapping):
                assert getattr(settings, key) == value


def test_there_are_examples() -> None:
    assert {"fashion-mnist", "digits"} <= {path.stem for path in EXAMPLES}


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits")


def written(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


def test_the_later_goes_over_the_earlier(tmp_path: Path, digits: Dataset) -> None:
    text = """
    rounds = 7
    model = "mlp-9"
    [split]
    participants = 3
    validation_share = 0
    [methods.hyperfedzero]
    learning_rate = 1
    hypernetwork = { hidden = 5 }
    [variants.wide]
    method = "hyperfedzero"
    settings = { hypernetwork = { chunk_size = 64 } }
    """
    experiment = load_experiment(written(tmp_path, text))
    assert experiment.rounds_of(digits) == 7
    split = experiment.split_of(digits, 11)
    assert (split.participants, split.new_devices, split.seed, split.validation_share) == (3, 5, 11, 0.0)
    method, own = experiment.resolve("wide")
    settings = own.settings_of(method, digits)
    assert (settings.learning_rate, settings.hypernetwork.hidden, settings.hypernetwork.chunk_size) == (1.0, 5, 64)
    assert settings.model == "mlp-9"
    assert experiment.settings_of("hyperfedzero", digits).hypernetwork.chunk_size != 64
    assert Experiment().rounds_of(digits) == 150


WRONG = {
    "unknown key": ("roundz = 3", "has no setting 'roundz'"),
    "wrong type": ('rounds = "many"', "config.toml.rounds has the wrong type"),
    "true is no number": ("rounds = true", "config.toml.rounds has the wrong type"),
    "no rounds": ("rounds = 0", "rounds is out of range"),
    "no threads": ("threads = 0", "threads is out of range"),
    "checkpoints": ("checkpoint_every = 0", "checkpoint_every is out of range"),
    "unknown correction": ('correction = ["uniform", "magic"]', "correction is unknown"),
    "no correction": ("correction = []", "correction is unknown"),
    "unknown split": ("[split]\nparticipantz = 3", "split has no setting 'participantz'"),
    "split is no table": ("split = 3", "config.toml.split has the wrong type"),
    "unknown method": ("[methods.fedmagic]\nmodel = 'mlp'", "unknown method"),
    "unknown setting of a method": ("[methods.fedavg]\nmagic = 1", "fedavg has no setting 'magic'"),
    "wrong type in a method": ("[methods.fedavg]\nlocal_steps = 1.5", "fedavg.local_steps has the wrong type"),
    "method is no table": ("[methods]\nfedavg = 3", "config.toml.methods.fedavg has the wrong type"),
    "unknown method in a variant": ("[variants.mine]\nmethod = 'fedmagic'", "unknown method or variant"),
    "variant without method": ("[variants.mine]\nsettings = {}", "unknown method or variant"),
    "variant is no table": ("[variants]\nmine = 3", "config.toml.variants.mine has the wrong type"),
    "variant with more": ("[variants.mine]\nmethod = 'fedavg'\nseed = 3", "variant mine was not understood"),
    "variant with odd settings": ("[variants.mine]\nmethod = 'fedavg'\nsettings = 3", "variant mine was not understood"),
    "variant with an unknown setting": ("[variants.mine]\nmethod = 'fedavg'\nsettings = { magic = 1 }", "fedavg has no setting 'magic'"),
    "variant named as a method": ("[variants.fedprox]\nmethod = 'fedavg'", "has the name of a method"),
    "nested unknown": ("[methods.hyperfedzero.hypernetwork]\nmagic = 1", "hyperfedzero.hypernetwork has no setting 'magic'"),
    "nested wrong type": ("[methods.hyperfedzero]\nhypernetwork = 3", "hyperfedzero.hypernetwork has the wrong type"),
    "no TOML": ("rounds = = 3", "is no TOML file"),
    "deep": ("x = " + "[" * 100_000, "is no TOML file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_fault_of_a_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    text, sentence = WRONG[name]
    with pytest.raises(InputError) as caught:
        load_experiment(written(tmp_path, text))
    assert sentence in caught.value.sentence()


def test_bytes_that_are_no_text_and_large_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"data = '\xff'")
    with pytest.raises(InputError, match="is no TOML file"):
        load_experiment(path)
    path.write_text("#" * (2 << 20))
    with pytest.raises(InputError, match="is too large"):
        load_experiment(path)
    with pytest.raises(InputError, match="cannot be opened"):
        load_experiment(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("command", [["train", "fedavg"], ["compare", "fedavg"]])
def test_a_wrong_file_ends_a_command_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("roundz = 3", "rounds = = 3"):
        path = written(tmp_path, text)
        result = CliRunner().invoke(main, [*command, "--config", str(path)])
        assert result.exit_code == InputError.exit_code
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
    assert [each.name for each in tmp_path.iterdir()] == ["config.toml"]


def test_an_unknown_name_lists_methods_and_variants() -> None:
    experiment = Experiment(variants={"mine": {"method": "fedavg"}})
    with pytest.raises(InputError) as caught:
        experiment.resolve("yours")
    assert all(name in str(caught.value.expected) for name in (*METHODS, "mine"))


def test_a_cut_that_is_wrong_is_named(digits: Dataset) -> None:
    with pytest.raises(InputError, match=r"split\.participants has the wrong type"):
        Experiment(split={"participants": "five"}).split_of(digits, 0)
    with pytest.raises(DatasetError, match="partition is unknown"):
        Experiment(split={"partition": "magic"}).split_of(digits, 0)
    with pytest.raises(InputError, match="device is unknown"):
        Experiment(device="tpu").torch_device()


@dataclass(frozen=True)
class Inner:
    size: int = 3


@dataclass(frozen=True)
class Settings:
    number: float = 1.0
    kind: Literal["a", "b", 1] = "a"
    inner: Inner = field(default_factory=Inner)
    inner_or_none: Inner | None = None
    maybe: int | None = None
    word_or_number: str | float = "x"
    names: tuple[str, ...] = ()
    pair: tuple[int, str] = (1, "x")
    pairs: tuple[tuple[int, ...], ...] = ()
    free: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


RIGHT: list[tuple[str, Any, Any]] = [
    ("number", 2, 2.0),
    ("number", 0.5, 0.5),
    ("kind", "b", "b"),
    ("kind", 1, 1),
    ("inner", {"size": 4}, Inner(4)),
    ("inner", {}, Inner()),
    ("inner_or_none", {"size": 4}, Inner(4)),
    ("inner_or_none", None, None),
    ("maybe", None, None),
    ("maybe", 3, 3),
    ("word_or_number", 3, 3.0),
    ("word_or_number", "y", "y"),
    ("names", ["a", "b"], ("a", "b")),
    ("names", [], ()),
    ("pair", [2, "y"], (2, "y")),
    ("pairs", [[1, 2], []], ((1, 2), ())),
    ("free", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
    ("counts", {"a": 1}, {"a": 1}),
]


@pytest.mark.parametrize(("name", "value", "expected"), RIGHT)
def test_values_take_the_type_that_their_setting_states(name: str, value: Any, expected: Any) -> None:
    found = getattr(build_settings(Settings, {name: value}, "here"), name)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", True),
        ("number", "2"),
        ("number", None),
        ("number", 10**400),
        ("kind", "c"),
        ("kind", True),
        ("kind", ["a"]),
        ("kind", None),
        ("inner", 3),
        ("inner", None),
        ("inner", {"size": 1.5}),
        ("inner", {"length": 1}),
        ("maybe", 1.5),
        ("maybe", True),
        ("word_or_number", None),
        ("word_or_number", [1]),
        ("names", "ab"),
        ("names", [1]),
        ("names", {"a": 1}),
        ("pair", [1]),
        ("pair", [1, 2]),
        ("pair", [1, "x", "y"]),
        ("pairs", [[1, "x"]]),
        ("free", 3),
        ("counts", {"a": 1.5}),
    ],
)
def test_values_of_another_type_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"^(setting )?here\.{name}"):
        build_settings(Settings, {name: value}, "here")


def test_missing_settings_are_named() -> None:
    @dataclass
    class Needs:
        size: int

    Needs.__annotations__["size"] = int
    with pytest.raises(InputError, match=r"here lacks a setting.*size"):
        build_settings(Needs, {}, "here")
