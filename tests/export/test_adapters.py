"""LoRA factors of a graph: base, feed and adapter agree; files are whole; IO binding is never used with them."""

from __future__ import annotations

import ast
import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner

from edge_runtime import Bundle
from edge_runtime.adapters import Adapter, make_adapter, save_adapter
from edge_runtime.sessions import open_session
from export.adapters import write_onnx_adapter
from export.bundling import Origin, Release, bundle_from_parts, export_parts
from fedtailor import main
from protocol.bundle import write_bundle
from protocol.errors import IncompatibleVersionError, InputError, UnsafeGraphError
from protocol.keys import PrivateKey
from protocol.manifest import GraphSpec, MethodEntry
from protocol.onnx_graph import check_graph
from tests.export.exported import exported_lora, lora_factors, lora_part, lora_spec
from tests.source_tree import modules, tree_of
from trainer.lora_inputs import LoraInputs
from trainer.methods.base import Task

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


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a bundle whose classifier takes factors, release.pub, and what `edge personalize` made."""
    root, key = tmp_path_factory.mktemp("lora"), PrivateKey(bytes([4] * 32))
    task = Task((6,), "float32", -1.0, 1.0, ("a", "b", "c"))
    origin = Origin(MethodEntry("fedavg", {}, ()), task, None, 1_700_000_000, {})
    content, files = bundle_from_parts((lora_part()[0],), origin, Release("lora"))
    write_bundle(root / "bundle", content, {**files, "README.md": b"untrained"}, key)
    key.public.save(root / "release.pub")
    Bundle.open(root / "bundle", key.public).personalize(SAMPLES).save(root / "mine")
    np.save(root / "samples.npy", SAMPLES)
    return root


@pytest.mark.parametrize("bake", [False, True])
def test_a_classifier_changes_its_factors_on_the_same_session(release: Path, spec: GraphSpec, tmp_path: Path, bake: bool) -> None:
    classifier = Bundle.open(release / "bundle", release / "release.pub").personalize(SAMPLES, bake=bake)
    session = classifier._session
    np.testing.assert_allclose(classifier.logits(SAMPLES), expected(None), atol=1e-5)
    for rank in (2, 5):
        adapter = some_adapter(spec, rank)
        save_adapter(tmp_path / "mine.safetensors", adapter)
        for given in (adapter, tmp_path / "mine.safetensors"):
            classifier.use_adapter(given)
            np.testing.assert_allclose(classifier.logits(SAMPLES), expected(adapter), rtol=1e-4, atol=1e-4)
    before = classifier.logits(SAMPLES)
    with pytest.raises(InputError, match="which is missing"):
        classifier.use_adapter(Adapter({"0.lora_A": np.ones((2, 6), np.float32)}, 2))
    np.testing.assert_array_equal(classifier.logits(SAMPLES), before)
    classifier.use_adapter(None)
    np.testing.assert_allclose(classifier.logits(SAMPLES), expected(None), atol=1e-5)
    assert classifier._session is session


def test_a_prediction_sees_one_adapter_and_never_a_mixture(release: Path, spec: GraphSpec) -> None:
    classifier = Bundle.open(release / "bundle", release / "release.pub").personalize(SAMPLES)
    many = np.repeat(SAMPLES, 120, axis=0)  # more than go through a session at once
    adapters = [some_adapter(spec, rank) for rank in (2, 3)]
    allowed = []
    for adapter in adapters:
        classifier.use_adapter(adapter)
        allowed.append(classifier.logits(many))
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for adapter in adapters:
                classifier.use_adapter(adapter)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen = [classifier.logits(many) for _ in range(300)]
    finally:
        done.set()
        thread.join()
    which = [[np.array_equal(each, one) for one in allowed] for each in seen]
    assert all(any(row) for row in which)


@needs_adapters
def test_the_command_writes_an_adapter_that_agrees_with_feeding(release: Path, spec: GraphSpec, tmp_path: Path) -> None:
    """Base, feed and adapter, all three from the bundle."""
    own, path = some_adapter(spec, 3), tmp_path / "mine.onnx_adapter"
    save_adapter(tmp_path / "mine.safetensors", own)
    words = ["adapter", str(release / "bundle"), str(tmp_path / "mine.safetensors"), "--trusted", str(release / "release.pub")]
    written = CliRunner().invoke(main, [*words, "--out", str(path), "--json"])
    assert written.exit_code == 0, written.output
    assert json.loads(written.stdout)["rank"] == 3
    loaded, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    loaded.Load(str(path))
    options.add_active_adapter(loaded)
    bundle = Bundle.open(release / "bundle", release / "release.pub")
    graph = (release / "bundle" / bundle.manifest.graphs["classify"].file).read_bytes()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    classifier = bundle.personalize(SAMPLES)
    np.testing.assert_allclose(session.run(None, {"samples": SAMPLES})[0], classifier.logits(SAMPLES), atol=1e-5)
    classifier.use_adapter(own)
    np.testing.assert_allclose(session.run(None, {"samples": SAMPLES}, options)[0], classifier.logits(SAMPLES), rtol=1e-5, atol=1e-5)
    wrong = CliRunner().invoke(main, [*words, "--out", str(tmp_path / "mine.bin")])
    assert wrong.exit_code == InputError.exit_code
    (tmp_path / "mine.safetensors").write_bytes(b"nonsense")
    assert CliRunner().invoke(main, [*words, "--out", str(path)]).exit_code == InputError.exit_code


def test_the_command_takes_an_adapter(release: Path, spec: GraphSpec, tmp_path: Path) -> None:
    adapter = some_adapter(spec, 3)
    save_adapter(tmp_path / "mine.safetensors", adapter)
    words = ["edge", "predict", str(release / "mine"), str(release / "samples.npy")]
    plain, adapted = (CliRunner().invoke(main, [*words, *more]) for more in ([], ["--adapter", str(tmp_path / "mine.safetensors")]))
    for result, logits in ((plain, expected(None)), (adapted, expected(adapter))):
        assert [json.loads(line)["label"] for line in result.stdout.splitlines()] == ["abc"[place] for place in logits.argmax(axis=1)]
    assert plain.stdout != adapted.stdout
    (tmp_path / "mine.safetensors").write_bytes(b"nonsense")
    refused = CliRunner().invoke(main, [*words, "--adapter", str(tmp_path / "mine.safetensors")])
    assert (refused.exit_code, refused.stdout) == (InputError.exit_code, "")
