"""LoRA factors of a graph: base, feed and adapter agree; files are whole; IO binding is never used with them."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from edge_runtime.adapters import Adapter, make_adapter
from edge_runtime.sessions import open_session
from export.adapters import write_onnx_adapter
from export.bundling import export_parts
from protocol.errors import IncompatibleVersionError, InputError, UnsafeGraphError
from protocol.manifest import GraphSpec
from protocol.onnx_graph import check_graph
from tests.export.exported import exported_lora, lora_factors, lora_part, lora_spec
from tests.source_tree import modules, tree_of
from trainer.lora_inputs import LoraInputs

SAMPLES = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
needs_adapters = pytest.mark.skipif(not hasattr(onnxruntime, "AdapterFormat"), reason="this ONNX Runtime has no adapter files")


@pytest.fixture(scope="module")
def spec() -> GraphSpec:
    return export_parts((lora_part()[0],))[1]["classify"]


def some_adapter(spec: GraphSpec, rank: int) -> Adapter:
    return make_adapter(lora_factors(rank), spec)


def expected(adapter: Adapter | None) -> np.ndarray:
    """Return the logits under the merged weights, W + scale B A, computed in float64."""
    model = lora_part()[1].adapted
    x = SAMPLES.astype(np.float64)
    for place, name in enumerate("02"):
        weight, bias = (model.get_parameter(f"{name}.{own}").detach().double().numpy() for own in ("weight", "bias"))
        if adapter is not None:
            weight = weight + 2.0 * (adapter.factors[f"{name}.lora_B"].astype(float) @ adapter.factors[f"{name}.lora_A"])
        x = x @ weight.T + bias
        x = np.maximum(x, 0) if place == 0 else x
    return x


def test_without_factors_the_graph_is_the_base_model() -> None:
    session = open_session(exported_lora().graph, "1.19")
    assert session.input_names == ("samples",)
    assert session.optional_names == ("0.lora_A", "0.lora_B", "2.lora_A", "2.lora_B")
    np.testing.assert_allclose(session.run({"samples": SAMPLES})[0], expected(None), atol=1e-5)


@needs_adapters
@pytest.mark.parametrize("rank", [1, 3, 8, 64])
def test_feed_and_adapter_agree_at_any_rank(spec: GraphSpec, tmp_path: Path, rank: int) -> None:
    adapter = some_adapter(spec, rank)
    fed = open_session(exported_lora().graph, "1.19").run({"samples": SAMPLES, **adapter.factors})[0]
    np.testing.assert_allclose(fed, expected(adapter), rtol=1e-4, atol=1e-4)
    path = tmp_path / "mine.onnx_adapter"
    write_onnx_adapter(path, adapter, model_version=3, target_runtime="1.20")
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    loaded = onnxruntime.LoraAdapter()
    loaded.Load(str(path))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(loaded)
    session = quiet_session()
    np.testing.assert_array_equal(session.run(None, {"samples": SAMPLES}, options)[0], fed)
    assert np.abs(fed - expected(None)).max() > 0.1  # the adapter does change the answer


def quiet_session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(exported_lora().graph, options, providers=["CPUExecutionProvider"])


@needs_adapters
def test_io_binding_would_ignore_an_adapter(spec: GraphSpec, tmp_path: Path) -> None:
    """Why nothing here uses IO binding: the runtime gives the base model's answer without a word."""
    write_onnx_adapter(tmp_path / "mine.onnx_adapter", some_adapter(spec, 2), model_version=1, target_runtime="1.20")
    loaded = onnxruntime.LoraAdapter()
    loaded.Load(str(tmp_path / "mine.onnx_adapter"))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(loaded)
    session = quiet_session()
    binding = session.io_binding()
    binding.bind_cpu_input("samples", SAMPLES)
    binding.bind_output("logits")
    session.run_with_iobinding(binding, options)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected(None), atol=1e-5)


def test_nothing_of_ours_uses_io_binding() -> None:
    used = [
        f"{name}:{node.lineno}"
        for name, path in modules().items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in {"io_binding", "run_with_iobinding"}
    ]
    assert used == []


def test_optional_inputs_must_be_those_of_the_manifest(spec: GraphSpec) -> None:
    assert spec == lora_spec()
    check_graph(exported_lora().graph, spec)
    assert [each.optional for each in spec.inputs] == [False, True, True, True, True]
    required = replace(spec, inputs=tuple(replace(each, optional=False) for each in spec.inputs))
    with pytest.raises(UnsafeGraphError, match="optional inputs"):
        check_graph(exported_lora().graph, required)


@needs_adapters
@pytest.mark.parametrize(
    ("name", "version", "target", "error"),
    [
        ("mine.onnx_adapter", 1, "1.19", IncompatibleVersionError),
        ("mine.bin", 1, "1.20", InputError),
        ("mine.onnx_adapter", 0, "1.20", InputError),
        ("mine.onnx_adapter", 1, "new", InputError),
    ],
)
def test_an_adapter_file_that_cannot_work_is_not_written(
    spec: GraphSpec, tmp_path: Path, name: str, version: int, target: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        write_onnx_adapter(tmp_path / name, some_adapter(spec, 2), version, target)
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_factors_has_no_factor_inputs() -> None:
    with pytest.raises(InputError, match="no LoRA factors"):
        LoraInputs(torch.nn.Linear(2, 2))
