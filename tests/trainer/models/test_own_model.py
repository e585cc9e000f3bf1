"""A user's own model: found by name, and checked before anything trains."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from protocol.errors import InputError
from trainer.models.registry import build_model

SOURCE = """
import torch
from torch import nn

number = 5

def flat(sample_shape, classes):
    size = 1
    for side in sample_shape:
        size *= side
    return nn.Sequential(nn.Flatten(), nn.Linear(size, classes))

def no_module(sample_shape, classes):
    return 3

def no_weights(sample_shape, classes):
    return nn.Flatten()

def wrong_classes(sample_shape, classes):
    return flat(sample_shape, classes + 1)

def wrong_type(sample_shape, classes):
    model = flat(sample_shape, classes)
    model.forward = lambda x: [x]
    return model

def wrong_input(sample_shape, classes):
    return flat((7,), classes)

def batch_normalised(sample_shape, classes):
    return nn.Sequential(flat(sample_shape, classes), nn.BatchNorm1d(classes))

def batch_statistics(sample_shape, classes):
    return nn.Sequential(flat(sample_shape, classes), nn.BatchNorm1d(classes, track_running_stats=False))

def dropping(sample_shape, classes):
    return nn.Sequential(flat(sample_shape, classes), nn.Dropout(0.1))

def failing(sample_shape, classes):
    raise KeyError("oops")
"""


@pytest.fixture(autouse=True)
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_networks.py").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "broken_networks.py").write_text("raise RuntimeError('no luck')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("own_networks", "broken_networks"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("factory", ["flat", "batch_statistics"])
def test_an_own_model_is_built(factory: str) -> None:
    model = build_model(f"own_networks:{factory}", (2, 3), 4)
    assert isinstance(model, nn.Module)
    assert model(torch.zeros(5, 2, 3)).shape == (5, 4)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent_networks:flat", "absent_networks cannot be imported.*ModuleNotFoundError.*PYTHONPATH"),
        ("broken_networks:flat", "broken_networks cannot be imported.*RuntimeError: no luck"),
        ("own_networks:absent", "own_networks:absent is no factory.*nothing of that name"),
        ("own_networks:number", "own_networks:number is no factory.*got int"),
        ("own_networks:failing", r"own_networks:failing\(\(2, 3\), 4\) failed.*KeyError"),
        ("own_networks:no_module", "expected a torch.nn.Module, got int"),
        ("own_networks:no_weights", "nothing to train"),
        ("own_networks:wrong_classes", r"wrong output: expected \(2, 4\) for samples \(2, 2, 3\), got \(2, 5\)"),
        ("own_networks:wrong_type", r"wrong output: expected \(2, 4\) .*, got list"),
        ("own_networks:wrong_input", "cannot take the samples"),
        ("own_networks:batch_normalised", "running statistics.*1.running_mean.*GroupNorm"),
        ("own_networks:dropping", "draws random numbers"),
        (":flat", "a factory is named wrongly"),
        ("own_networks:", "a factory is named wrongly"),
        ("own_networks:a:b", "a factory is named wrongly"),
        ("/etc/own.py:flat", "a factory is named wrongly"),
    ],
)
def test_what_cannot_be_trained_is_refused(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(source, (2, 3), 4)


def test_an_own_model_takes_no_sizes() -> None:
    with pytest.raises(InputError, match="takes no sizes"):
        build_model("own_networks:flat", (2, 3), 4, hidden=5)
