"""Adapters in PEFT's layout: there and back, into a graph, and refused whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import safetensors.numpy
import torch

from edge_runtime.adapters import make_adapter
from edge_runtime.sessions import open_session
from export.adapters import write_onnx_adapter
from protocol.errors import InputError
from tests.export.exported import exported_lora, lora_part, lora_spec
from tests.trainer.factors.pairs import draw
from trainer.factors.adapter_files import CONFIGURATION_FILE, TENSORS_FILE, LoraAdapter, graph_factors, load_peft, save_peft
from trainer.factors.checking import check_factors
from trainer.factors.pair import Factors

LAYERS = {"blocks.0.fc": (11, 7), "head": (5, 11)}
ADAPTER = LoraAdapter(
    {"blocks.0.fc": draw(0, 2).to(torch.float32), "head": draw(1, 3, outputs=5, inputs=11).to(torch.float32)},
    {"blocks.0.fc": 8.0, "head": 6.0},
)
A, B = "base_model.model.blocks.0.fc.lora_A.weight", "base_model.model.blocks.0.fc.lora_B.weight"
Tensors = dict[str, np.ndarray]


def test_an_adapter_comes_back_from_its_folder(tmp_path: Path) -> None:
    save_peft(tmp_path, ADAPTER)
    found = load_peft(tmp_path, LAYERS)
    assert found.alphas == ADAPTER.alphas
    assert found.scales() == {"blocks.0.fc": 4.0, "head": 2.0}
    for name, pair in ADAPTER.pairs.items():
        assert torch.equal(found.pairs[name].a, pair.a)
        assert torch.equal(found.pairs[name].b, pair.b)
    tensors = safetensors.numpy.load_file(tmp_path / TENSORS_FILE)
    assert {name: each.shape for name, each in tensors.items() if "fc" in name} == {A: (2, 7), B: (11, 2)}
    configuration = json.loads((tmp_path / CONFIGURATION_FILE).read_text())
    assert sorted(configuration["target_modules"]) == sorted(LAYERS)


def test_patterns_are_ends_of_names(tmp_path: Path) -> None:
    save_peft(tmp_path, ADAPTER)
    edit(tmp_path, lambda each: each.update(r=3, rank_pattern={"fc": 2}, lora_alpha=6, alpha_pattern={"0.fc": 1}))
    assert load_peft(tmp_path, LAYERS).alphas == {"blocks.0.fc": 1.0, "head": 6.0}


def test_a_graph_computes_what_the_adapter_means(tmp_path: Path) -> None:
    model = lora_part()[1].adapted
    shapes = {name: tuple(model.get_parameter(f"{name}.weight").shape) for name in "02"}
    pairs = {
        name: draw(index, 2 + index, outputs=shape[0], inputs=shape[1]).to(torch.float32)
        for index, (name, shape) in enumerate(shapes.items())
    }
    adapter = LoraAdapter(pairs, {"0": 3.0, "2": 1.5})
    factors = make_adapter(graph_factors(adapter, {"0": 2.0, "2": 2.0}), lora_spec())
    samples = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
    found = open_session(exported_lora().graph, "1.19").run({"samples": samples, **factors.factors})[0]
    x = samples.astype(np.float64)
    for place, name in enumerate("02"):
        weight, bias = (model.get_parameter(f"{name}.{own}").detach().double().numpy() for own in ("weight", "bias"))
        x = x @ (weight + adapter.scales()[name] * pairs[name].to(torch.float64).product().numpy()).T + bias
        x = np.maximum(x, 0) if place == 0 else x
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-4)
    if hasattr(onnxruntime, "AdapterFormat"):
        write_onnx_adapter(tmp_path / "mine.onnx_adapter", factors, model_version=1, target_runtime="1.20")
        onnxruntime.LoraAdapter().Load(str(tmp_path / "mine.onnx_adapter"))
    with pytest.raises(InputError, match="a layer is missing: expected 2"):
        graph_factors(LoraAdapter({"0": pairs["0"]}, {"0": 1.0}), {"0": 2.0, "2": 2.0})


def edit(folder: Path, change: Callable[[dict[str, object]], object]) -> None:
    path = folder / CONFIGURATION_FILE
    configuration = json.loads(path.read_text())
    change(configuration)
    path.write_text(json.dumps(configuration))


TENSOR_FAULTS: dict[str, Callable[[Tensors], object]] = {
    "a factor of blocks.0.fc is transposed": lambda each: each.update({A: each[A].T.copy()}),
    "do not fit the layer": lambda each: each.update({A: np.ones((3, 7), np.float32)}),
    "a tensor is missing": lambda each: each.pop(B),
    "a tensor is not known": lambda each: each.update(more=each[A]),
    "NaN": lambda each: each.update({A: each[A] * np.float32("nan")}),
    "product of the factors of blocks.0.fc is too large": lambda each: each.update({A: each[A] * 1e3, B: each[B] * 1e3}),
    "floating": lambda each: each.update({A: np.ones((2, 7), np.int32)}),
    "not that of the configuration": lambda each: each.update({A: np.ones((4, 7), np.float32), B: np.ones((11, 4), np.float32)}),
}
CONFIGURATION_FAULTS: dict[str, dict[str, object]] = {
    "no LoRA configuration": {"peft_type": "IA3"},
    "more than plain LoRA: expected none of such options, got use_dora": {"use_dora": True},
    "got bias": {"bias": "all"},
    "rank_pattern is wrong": {"rank_pattern": [1]},
    "r of .* is wrong": {"r": "2", "rank_pattern": {}},
    "alpha of an adapter": {"lora_alpha": 0, "alpha_pattern": {}},
}


@pytest.mark.parametrize("reason", TENSOR_FAULTS)
def test_wrong_tensors_are_refused(tmp_path: Path, reason: str) -> None:
    save_peft(tmp_path, ADAPTER)
    tensors = safetensors.numpy.load_file(tmp_path / TENSORS_FILE)
    TENSOR_FAULTS[reason](tensors)
    safetensors.numpy.save_file(tensors, tmp_path / TENSORS_FILE)
    with pytest.raises(InputError, match=reason):
        load_peft(tmp_path, LAYERS)


@pytest.mark.parametrize("reason", CONFIGURATION_FAULTS)
def test_wrong_configurations_are_refused(tmp_path: Path, reason: str) -> None:
    save_peft(tmp_path, ADAPTER)
    edit(tmp_path, lambda each: each.update(CONFIGURATION_FAULTS[reason]))
    with pytest.raises(InputError, match=reason):
        load_peft(tmp_path, LAYERS)


def test_a_file_larger_than_its_layers_allow_is_not_read(tmp_path: Path) -> None:
    save_peft(tmp_path, ADAPTER)
    with (tmp_path / TENSORS_FILE).open("r+b") as file:
        file.truncate(10**9)
    with pytest.raises(InputError, match=r"large|bytes"):
        load_peft(tmp_path, LAYERS)


def test_received_pairs_are_held_against_the_layers() -> None:
    check_factors(ADAPTER.pairs, LAYERS)
    with pytest.raises(InputError, match="a layer is not known"):
        check_factors({**ADAPTER.pairs, "other": draw(0, 1)}, LAYERS)
    with pytest.raises(InputError, match="rank of head is wrong"):
        check_factors({**ADAPTER.pairs, "head": Factors(torch.zeros(0, 11), torch.zeros(5, 0))}, LAYERS)
    with pytest.raises(InputError, match="NaN"):
        check_factors({**ADAPTER.pairs, "head": ADAPTER.pairs["head"].scaled(float("inf"))}, LAYERS)
