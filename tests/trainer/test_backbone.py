"""Frozen backbones: what they take, what their features look like, and what the cache may give back."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from protocol.errors import InputError, NumericalError
from trainer.backbone import Backbone, features_of, load_backbone
from trainer.data.dataset import Dataset

SOURCE = """
import torch
from torch import nn

calls = []

class Edges(nn.Module):
    def __init__(self, seed=0, scale=1.0):
        super().__init__()
        torch.manual_seed(seed)
        self.convolution = nn.Conv2d(1, 2, 2)
        self.register_buffer("scale", torch.tensor(scale), persistent=False)

    def forward(self, samples):
        assert not self.training
        calls.append((len(samples), samples.dtype))
        return self.convolution(samples.float().unsqueeze(1)) * self.scale

def edges():
    return Edges()

def other_weights():
    return Edges(seed=1)

def other_buffer():
    return Edges(scale=2.0)

def function():
    def doubled(samples):
        calls.append((len(samples), samples.dtype))
        return samples.flatten(1).double() * 2
    return doubled

def number():
    return 3

def not_finite():
    return lambda samples: 1 / (samples.float().flatten(1)[:, :2] - 7)

def constant():
    return lambda samples: torch.ones(len(samples), 3)

def too_few():
    return lambda samples: samples[:1].float()

def no_tensor():
    return lambda samples: [samples]

def raising():
    return lambda samples: samples @ samples

def growing():
    return lambda samples: torch.rand(len(samples), len(samples))
"""


@pytest.fixture(autouse=True)
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, torch.dtype]]:
    """Return the batches that the test's own backbones were given."""
    (tmp_path / "own_backbones.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.delitem(sys.modules, "own_backbones", raising=False)
    return importlib.import_module("own_backbones").calls


def own(factory: str) -> Backbone:
    return load_backbone(f"own_backbones:{factory}")


@pytest.fixture
def dataset() -> Dataset:
    samples = np.random.default_rng(0).integers(8, 200, (11, 4, 3)).astype(np.uint8)
    return Dataset("tiny", samples, np.arange(11, dtype=np.int64) % 2, ("a", "b"), 0.0, 255.0)


def test_features_take_the_place_of_the_samples(dataset: Dataset, tmp_path: Path) -> None:
    backbone = own("edges")
    made = features_of(dataset, backbone, batch_size=4, cache=tmp_path)
    expected = backbone.compute(dataset.samples).reshape(11, 12).astype(np.float32)
    np.testing.assert_allclose(made.samples.astype(np.float32), expected, rtol=1e-6)
    assert made.samples.dtype == np.float32
    assert (made.minimum, made.maximum) == (made.samples.min(), made.samples.max())
    assert (made.name, made.classes) == ("tiny-features", dataset.classes)
    np.testing.assert_array_equal(made.labels, dataset.labels)


def test_domains_stay(dataset: Dataset, tmp_path: Path) -> None:
    domains = np.arange(11, dtype=np.int64) % 3
    made = features_of(replace(dataset, domains=domains, domain_names=("x", "y", "z")), own("edges"), cache=tmp_path)
    assert made.domains is domains
    assert made.domain_names == ("x", "y", "z")


def test_a_module_sees_raw_samples_in_batches_and_is_told_how_far_it_is(
    dataset: Dataset, tmp_path: Path, calls: list[tuple[int, torch.dtype]]
) -> None:
    told: list[tuple[int, int]] = []
    features_of(dataset, own("edges"), batch_size=4, cache=tmp_path, progress=lambda done, total: told.append((done, total)))
    assert calls == [(4, torch.uint8), (4, torch.uint8), (3, torch.uint8)]
    assert told == [(4, 11), (8, 11), (11, 11)]


def test_features_are_computed_once(dataset: Dataset, tmp_path: Path, calls: list[tuple[int, torch.dtype]]) -> None:
    first = features_of(dataset, own("edges"))
    told: list[tuple[int, int]] = []
    again = features_of(dataset, own("edges"), progress=lambda done, total: told.append((done, total)))
    assert (len(calls), told) == (1, [(11, 11)])
    np.testing.assert_array_equal(first.samples, again.samples)
    assert len(list((tmp_path / "caches" / "fedtailor" / "features").iterdir())) == 1


def other_bytes(dataset: Dataset) -> Dataset:
    samples = dataset.samples.copy()
    samples[10, 3, 2] = 1
    return replace(dataset, samples=samples)


@pytest.mark.parametrize(
    "change",
    [
        other_bytes,
        lambda dataset: replace(dataset, samples=dataset.samples.reshape(11, 3, 4)),
        lambda dataset: replace(dataset, samples=dataset.samples.view(np.int8)),
    ],
)
def test_other_samples_have_other_features(
    dataset: Dataset, change: Callable[[Dataset], Dataset], tmp_path: Path, calls: list[tuple[int, torch.dtype]]
) -> None:
    features_of(dataset, own("edges"), cache=tmp_path)
    features_of(change(dataset), own("edges"), cache=tmp_path)
    assert len(calls) == 2


@pytest.mark.parametrize("factory", ["other_weights", "other_buffer"])
def test_another_backbone_has_other_features(dataset: Dataset, factory: str, tmp_path: Path, calls: list[tuple[int, torch.dtype]]) -> None:
    first = features_of(dataset, own("edges"), cache=tmp_path)
    other = features_of(dataset, own(factory), cache=tmp_path)
    assert len(calls) == 2
    assert not np.array_equal(first.samples, other.samples)


def test_a_plain_function_is_never_cached(dataset: Dataset, tmp_path: Path, calls: list[tuple[int, torch.dtype]]) -> None:
    for _ in range(2):
        made = features_of(dataset, own("function"), cache=tmp_path / "cache")
    assert len(calls) == 2
    assert not (tmp_path / "cache").exists()
    np.testing.assert_array_equal(made.samples, dataset.samples.reshape(11, 12).astype(np.float32) * 2)


def flip_a_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("damage", [flip_a_bit, lambda content: content[:-4], lambda content: b""])
def test_a_damaged_cache_is_computed_again(
    dataset: Dataset,
    damage: Callable[[bytes], bytes],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    calls: list[tuple[int, torch.dtype]],
) -> None:
    cache = tmp_path / "cache"
    first = features_of(dataset, own("edges"), cache=cache)
    (file,) = cache.iterdir()
    content = file.read_bytes()
    file.write_bytes(damage(content))
    with caplog.at_level(logging.WARNING):
        again = features_of(dataset, own("edges"), cache=cache)
    assert len(calls) == 2
    assert f"{file} is damaged" in caplog.text
    np.testing.assert_array_equal(first.samples, again.samples)
    assert file.read_bytes() == content


def test_a_cache_that_cannot_be_written_is_no_error(dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        features_of(dataset, own("edges"), cache=tmp_path / "file")
    assert "features are not cached" in caplog.text


def test_features_that_are_not_finite_name_the_sample(dataset: Dataset, tmp_path: Path) -> None:
    dataset.samples[9, 0, 1] = 7
    with pytest.raises(NumericalError, match="NaN or infinity for sample 9"):
        features_of(dataset, own("not_finite"), batch_size=4, cache=tmp_path)


@pytest.mark.parametrize(
    ("factory", "error", "message"),
    [
        ("constant", NumericalError, "same feature for everything"),
        ("too_few", InputError, r"no features for each sample: expected features \(11, ...\)"),
        ("no_tensor", InputError, "gives no features.*got list"),
        ("raising", InputError, r"cannot take the samples: got samples \(11, 4, 3\) uint8: RuntimeError.*raw samples"),
    ],
)
def test_backbones_that_give_no_features_are_refused(dataset: Dataset, factory: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        features_of(dataset, own(factory))


def test_features_must_keep_their_size(dataset: Dataset) -> None:
    with pytest.raises(InputError, match="changes its features: expected 4, got 3"):
        features_of(dataset, own("growing"), batch_size=4)


def test_a_batch_holds_a_sample(dataset: Dataset) -> None:
    with pytest.raises(InputError, match="batch size"):
        features_of(dataset, own("edges"), batch_size=0)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("resnet18", "backbone is unknown: expected an .onnx file, or module:factory, got resnet18"),
        ("own_backbones:absent", "is no factory"),
        ("own_backbones:number", "returned no backbone.*got int"),
        ("absent.onnx", "absent.onnx cannot be opened"),
    ],
)
def test_what_is_no_backbone_is_refused(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_backbone(source)


def onnx_file(path: Path, dtype: int, batch: int | str, operator: str = "Neg") -> Path:
    """Write a graph that negates samples (B, 4, 3), or does something else with them."""
    values = [helper.make_tensor_value_info(name, dtype, [batch, 4, 3]) for name in ("raw", "features")]
    graph = helper.make_graph([helper.make_node(operator, ["raw"], ["features"])], "network", values[:1], values[1:])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("batch", ["batch", 1, 4])
@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.INT32])
def test_an_onnx_file_takes_raw_samples_in_its_own_dtype(dataset: Dataset, batch: int | str, dtype: int, tmp_path: Path) -> None:
    backbone = load_backbone(onnx_file(tmp_path / "negate.onnx", dtype, batch))
    made = features_of(dataset, backbone, batch_size=5, cache=tmp_path)
    np.testing.assert_array_equal(made.samples, -dataset.samples.reshape(11, 12).astype(np.float32))


def test_another_onnx_file_has_other_features(dataset: Dataset, tmp_path: Path) -> None:
    made = [
        features_of(dataset, load_backbone(str(onnx_file(tmp_path / "a.onnx", 1, "batch", operator))), cache=tmp_path / "cache")
        for operator in ("Neg", "Abs", "Neg")
    ]
    np.testing.assert_array_equal(made[1].samples, dataset.samples.reshape(11, 12).astype(np.float32))
    np.testing.assert_array_equal(made[0].samples, made[2].samples)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_samples_that_a_graph_cannot_take_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    backbone = load_backbone(onnx_file(tmp_path / "negate.onnx", onnx.TensorProto.INT32, "batch"))
    with pytest.raises(InputError, match="expected what int32 can hold, got float32"):
        features_of(replace(dataset, samples=dataset.samples.astype(np.float32)), backbone)
    with pytest.raises(InputError, match="cannot take the samples"):
        features_of(replace(dataset, samples=dataset.samples.reshape(11, 12)), backbone)


def test_a_graph_needs_an_input_of_numbers(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot take samples.*got tensor\(string\)"):
        load_backbone(onnx_file(tmp_path / "texts.onnx", onnx.TensorProto.STRING, "batch", "Identity"))


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(InputError, match="ONNX Runtime refuses"):
        load_backbone(tmp_path / "junk.onnx")
