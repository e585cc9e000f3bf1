"""Variants in smaller numbers: made the same in every process, judged on the device's way, refused where they cost too much."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from edge_runtime import Bundle
from edge_runtime.precision import choose_form
from edge_runtime.sessions import open_session
from export.graphs import load_model, to_onnx
from export.precision.device_way import Exchanged
from export.precision.eight_bit import is_convolutional, to_eight_bits
from export.precision.fold_scale import fold_scale
from export.precision.half import to_half
from export.precision.relu_before_pool import relu_before_pool
from export.precision.timing import Stopwatch
from export.precision.variants import Evidence, VariantRequest, Verdict, _Trial, add_variants
from export.selftest import golden_samples
from protocol.bundle import write_bundle
from protocol.errors import BundleFileError, InputError, ManifestError, RunFolderError
from protocol.keys import PrivateKey
from protocol.manifest import GraphSpec, Manifest, Parity, RawInput, Variant
from protocol.onnx_graph import inspect_graph
from protocol.operators import ALLOWED_OPERATORS
from tests.protocol.samples import manifest
from trainer.methods.parts import Part, PartTensor
from trainer.models.mlp import Normalise
from trainer.validation import MadeUpDevice

KEY = PrivateKey(bytes([7] * 32))
SHAPE = (1, 12, 12)
SAMPLES = np.random.default_rng(0).integers(0, 256, (64, *SHAPE)).astype(np.uint8)
Outcome = tuple[Manifest, dict[str, bytes]]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2048, 2)]
    return nn.Sequential(Normalise(0.0, 255.0), *layers).float()


@pytest.fixture(scope="module")
def plain(network: nn.Module) -> bytes:
    tensors = PartTensor("samples", "uint8", ("batch", *SHAPE), "", 0, 255), PartTensor("logits", "float32", ("batch", 2), "")
    return to_onnx(Part("classify", network, tensors[:1], tensors[1:]))


@pytest.fixture(scope="module")
def evidence(plain: bytes) -> Evidence:
    labels = open_session(plain, "1.19").run({"samples": SAMPLES})[0].argmax(axis=1)  # what float32 says is the truth here
    return Evidence(SAMPLES, [MadeUpDevice("made-up", SAMPLES, labels, SAMPLES, labels)])


def bundle_of(plain: bytes) -> Outcome:
    facts = inspect_graph(plain)
    tensors = manifest().graphs["classify"]
    spec = GraphSpec(
        "graphs/classify.onnx",
        (replace(tensors.inputs[0], dtype="uint8", shape=("batch", *SHAPE)),),
        tensors.outputs,
        facts.opsets[""],
        facts.ir_version,
        tuple(sorted(facts.operators)),
        Parity((1,), 1e-5, 1e-4, 0.0, None),
    )
    content = replace(manifest(), raw_input=RawInput("uint8", SHAPE, 0.0, 255.0, ""), graphs={"classify": spec})
    return content, {spec.file: plain, "selftest.safetensors": golden_samples(content, {spec.file: plain})}


def test_small_numbers_keep_the_interface_and_nearly_the_results(plain: bytes) -> None:
    expected = open_session(plain, "1.19").run({"samples": SAMPLES})[0]
    half, eighth = to_half(plain), to_eight_bits(plain, {"samples": SAMPLES})
    assert eighth is not None
    for graph, size, tolerance in ((half, 0.55, 0.01), (eighth, 0.45, 0.1)):
        facts = inspect_graph(graph)
        assert (facts.inputs, facts.outputs, facts.ir_version, set(facts.opsets)) == (["samples"], ["logits"], 8, {""})
        assert facts.operators <= ALLOWED_OPERATORS
        assert len(graph) < size * len(plain)
        got = open_session(graph, "1.19").run({"samples": SAMPLES})[0]
        assert got.dtype == np.float32
        assert np.abs(got - expected).max() < tolerance * np.abs(expected).max()
    assert to_eight_bits(plain, {"samples": SAMPLES}) == eighth
    assert not any(node.op_type == "ConvInteger" for node in load_model(eighth).graph.node)


def test_products_alone_need_no_calibration() -> None:
    torch.manual_seed(0)
    tensors = PartTensor("samples", "float32", ("batch", 64), ""), PartTensor("logits", "float32", ("batch", 256), "")
    plain = to_onnx(Part("generate", nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 256)), tensors[:1], tensors[1:]))
    assert not is_convolutional(plain)
    small = to_eight_bits(plain, {})
    assert small is not None
    assert len(small) < 0.4 * len(plain)
    samples = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    own, theirs = (open_session(graph, "1.19").run({"samples": samples})[0] for graph in (small, plain))
    assert np.abs(own - theirs).max() < 0.05 * np.abs(theirs).max()


def test_what_holds_travels_and_devices_run_it(plain: bytes, evidence: Evidence, tmp_path: Path) -> None:
    content, files = bundle_of(plain)
    content, verdicts = add_variants(content, files, VariantRequest(("fp16", "int8"), 5.0), evidence, Stopwatch(tmp_path))
    assert [(each.precision, each.kept) for each in verdicts] == [("fp16", True), ("int8", True)]
    assert all(each.variant is not None and each.variant.accuracy_float32 == 1.0 for each in verdicts)
    write_bundle(tmp_path / "bundle", content, files, KEY)
    for precision in ("fp32", "fp16", "int8"):
        bundle = Bundle.open(tmp_path / "bundle", KEY.public, precision)
        assert bundle.precision("classify") == precision
        assert len(bundle.personalize(SAMPLES).predict(SAMPLES[:3])) == 3
    small = tmp_path / "bundle" / "graphs" / "classify.int8.onnx"
    small.write_bytes((tmp_path / "bundle" / "graphs" / "classify.fp16.onnx").read_bytes())
    with pytest.raises(BundleFileError):
        Bundle.open(tmp_path / "bundle", KEY.public)


def test_what_loses_too_much_is_refused_with_its_figure(plain: bytes, evidence: Evidence, tmp_path: Path) -> None:
    wrong = replace(evidence, calibration=np.zeros_like(SAMPLES))  # scales of nothing: every activation saturates
    content, files = bundle_of(plain)
    content, (verdict,) = add_variants(content, files, VariantRequest(("int8",), 1.0), wrong, Stopwatch(tmp_path))
    assert not verdict.kept
    assert "more than 1" in verdict.reason
    assert content.graphs["classify"].variants == {}
    assert sorted(files) == ["graphs/classify.onnx", "selftest.safetensors"]


def test_nothing_to_judge_on_is_said(plain: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="validation_share"):
        add_variants(*bundle_of(plain), VariantRequest(("int8",)), Evidence(SAMPLES, []), Stopwatch(tmp_path))


def test_seconds_are_measured_once(plain: bytes, tmp_path: Path) -> None:
    half = to_half(plain)
    first = Stopwatch(tmp_path).compare(half, plain, {"samples": SAMPLES}, "1.19")
    assert min(first) > 0
    assert Stopwatch(tmp_path).compare(half, plain, {"samples": SAMPLES}, "1.19") == first
    (tmp_path / "measurements.json").write_text("[1")
    with pytest.raises(RunFolderError, match="damaged"):
        Stopwatch(tmp_path)


def variant(seconds: float, runtime: str = "1.19") -> Variant:
    return Variant("graphs/classify.int8.onnx", 18, 8, (), runtime, 1.0, 1.0, seconds, 1.0, 0.0)


@pytest.mark.parametrize(
    ("variants", "wanted", "taken"),
    [
        ({}, "auto", "fp32"),
        ({"int8": variant(0.5)}, "auto", "int8"),
        ({"int8": variant(0.5), "fp16": variant(0.4)}, "auto", "fp16"),
        ({"int8": variant(1.3)}, "auto", "fp32"),
        ({"int8": variant(1.3)}, "int8", "int8"),
        ({"int8": variant(0.5)}, "fp16", "fp32"),
        ({"int8": variant(0.5, "99.0")}, "auto", "fp32"),
        ({"int8": variant(0.5, "99.0")}, "int8", "fp32"),
    ],
)
def test_the_quickest_form_that_runs_is_taken(variants: dict[str, Variant], wanted: str, taken: str) -> None:
    assert choose_form(replace(manifest().graphs["classify"], variants=variants), wanted) == taken


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="auto or fp32 or fp16 or int8"):
        Bundle.open(tmp_path, KEY.public, "int4")


def test_a_variant_of_another_name_is_no_variant() -> None:
    content = json.loads(manifest().to_bytes())
    content["files"] = {name: {"length": 1, "sha256": "0" * 64} for name in ("graphs/classify.onnx", "graphs/classify.int8.onnx")}
    content["graphs"]["classify"]["variants"] = {"int4": json.loads(json.dumps(vars(variant(0.5))))}
    with pytest.raises(ManifestError, match="variants must be fp16 or int8"):
        Manifest.from_bytes(json.dumps(content).encode())


def test_a_graph_whose_weights_come_from_outside_is_left_alone() -> None:
    class Product(nn.Module):
        def forward(self, samples: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return samples @ weight

    inputs = PartTensor("samples", "float32", ("batch", 4), ""), PartTensor("weight.x", "float32", (4, 2), "")
    plain = to_onnx(Part("classify", Product(), inputs, (PartTensor("logits", "float32", ("batch", 2), ""),)))
    assert to_eight_bits(plain, {}) is None


def test_rectifying_first_changes_nothing() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 2))
    tensors = PartTensor("samples", "float32", ("batch", *SHAPE), ""), PartTensor("logits", "float32", ("batch", 2), "")
    plain = to_onnx(Part("classify", network, tensors[:1], tensors[1:]))
    model = load_model(plain)
    relu_before_pool(model, {node.name for node in model.graph.node if node.op_type == "Conv"})
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.index("Relu") < kinds.index("MaxPool")
    samples = np.random.default_rng(0).standard_normal((5, *SHAPE)).astype(np.float32)
    own, theirs = (open_session(graph, "1.19").run({"samples": samples})[0] for graph in (plain, model.SerializeToString()))
    assert np.array_equal(own, theirs)


def test_a_scale_goes_into_the_weights_and_stays_where_it_could_not() -> None:
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 8, 8])
    kernel = np.random.default_rng(5).standard_normal((4, 2, 3, 3)).astype(np.float32)
    product = helper.make_node("Mul", ["x", "scale"], ["s"])
    convolution = helper.make_node("Conv", ["s", "kernel"], ["y"], pads=[1, 1, 1, 1])
    second = helper.make_node("Conv", ["x", "kernel"], ["z"])
    sizes = {"s": (2, 8, 8), "y": (4, 8, 8), "z": (4, 6, 6)}
    number, per_channel = np.array([0.3], np.float32), np.array([[[0.5]], [[2.0]]], np.float32)
    cases = [
        ([product, convolution], ("y",), number, ["Conv"]),
        ([product, convolution], ("y",), per_channel, ["Mul", "Conv"]),
        ([product, convolution], ("s", "y"), number, ["Mul", "Conv"]),
        ([product, convolution, second], ("y", "z"), number, ["Mul", "Conv", "Conv"]),
    ]
    for nodes, outputs, scale, left in cases:
        constants = [onnx.numpy_helper.from_array(value, name) for name, value in (("scale", scale), ("kernel", kernel))]
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", *sizes[name]]) for name in outputs]
        graph = helper.make_graph([copy.deepcopy(node) for node in nodes], "graph", [image], values, constants)
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])
        feeds = {"x": np.random.default_rng(1).standard_normal((3, 2, 8, 8)).astype(np.float32)}
        before = open_session(model.SerializeToString(), "1.19").run(feeds)
        fold_scale(model)
        onnx.checker.check_model(model)
        assert [node.op_type for node in model.graph.node] == left
        for own, theirs in zip(open_session(model.SerializeToString(), "1.19").run(feeds), before, strict=True):
            np.testing.assert_allclose(own, theirs, rtol=1e-5, atol=1e-5)


def test_variants_that_hold_alone_but_not_together_lose_the_worst(plain: bytes, evidence: Evidence, tmp_path: Path) -> None:
    content, files = bundle_of(plain)
    trial = _Trial(content, files, VariantRequest(("fp16",), 1.0), evidence, Stopwatch(tmp_path))
    half = trial.judge("classify", "fp16")
    assert half.made is not None

    class Judge(_Trial):
        """Two entry points whose losses add up; no network does that on demand."""

        def judge(self, entry_point: str, precision: str) -> Verdict:
            figures = replace(half.made.variant, accuracy=0.993 if entry_point == "classify" else 0.991, accuracy_float32=1.0)  # type: ignore[union-attr]
            return Verdict(entry_point, precision, True, "kept", Exchanged(figures, b""))

        def accuracy(self, entry_point: str, exchanged: Mapping[str, Exchanged], precision: str) -> float:
            return 1.0 - 0.008 * len(exchanged)

    two = replace(content, graphs={"classify": content.graphs["classify"], "embed": content.graphs["classify"]})
    verdicts = Judge(two, files, trial.request, evidence, trial.stopwatch).judge_all("fp16")
    assert [(each.entry_point, each.kept) for each in verdicts] == [("classify", True), ("embed", False)]
    assert "classify and embed together lose 1.60 points" in verdicts[1].reason
