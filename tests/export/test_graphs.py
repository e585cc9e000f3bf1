"""Export: parity for every variant, clean bytes, determinism, and a gate that refuses."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from edge_runtime.sessions import open_session
from export.graphs import load_model, to_onnx
from export.parity import BATCH_SIZES, check_parity
from protocol.errors import InputError, ParityError
from protocol.onnx_graph import inspect_graph
from protocol.operators import ALLOWED_OPERATORS
from trainer.hypernetwork import HypernetworkSize
from trainer.methods.base import MethodSettings, Task
from trainer.methods.distribution_embedding import ExtractorSize
from trainer.methods.fedavg import FedAvg
from trainer.methods.hyperfedzero import HyperFedZero
from trainer.methods.parts import Part, PartTensor

IMAGES = Task((16, 16), "uint8", 0.0, 255.0, ("a", "b", "c"))
VECTORS = Task((5,), "float32", -1.0, 1.0, ("a", "b"))
SMALL: dict[str, Any] = {"model": "mlp-6", "extractor": ExtractorSize(hidden=5, embedding=4), "hypernetwork": HypernetworkSize(64, 3, 7)}
VARIANTS: list[tuple[MethodSettings, Task]] = [
    (FedAvg(model="mlp-6"), IMAGES),
    (HyperFedZero(**SMALL), IMAGES),
    (HyperFedZero(**SMALL, tailored="head"), IMAGES),
    (HyperFedZero(**SMALL, scope="sample"), IMAGES),
    (HyperFedZero(**SMALL), VECTORS),
]


def parts_of(settings: MethodSettings, task: Task) -> tuple[Part, ...]:
    method = settings.bind(task)
    return method.parts(method.initial_state(0))


@pytest.mark.parametrize(("settings", "task"), VARIANTS, ids=["fedavg", "device", "head", "sample", "vectors"])
def test_every_part_passes_the_gate_at_every_batch_size(settings: MethodSettings, task: Task) -> None:
    for part in parts_of(settings, task):
        graph = to_onnx(part)
        parity = check_parity(part, graph, "1.19")
        assert parity.batch_sizes == BATCH_SIZES == (1, 2, 3, 7, 17, 64)
        assert parity.label_agreement in (None, 1.0)
        facts = inspect_graph(graph)
        assert (facts.ir_version, facts.opsets) == (8, {"": 18})
        assert facts.operators <= ALLOWED_OPERATORS
        assert not facts.external_data


def test_no_trace_of_the_developer_is_left() -> None:
    for part in parts_of(HyperFedZero(**SMALL), IMAGES):
        model = load_model(to_onnx(part))
        for tensor in model.graph.initializer:
            tensor.ClearField("raw_data")  # weights are any bytes
        assert re.findall(r"/\w+/|\.py|torch|stack|trainer", str(model)) == []


@pytest.mark.slow
def test_two_processes_give_the_same_bytes(tmp_path: Path) -> None:
    code = (
        "import hashlib, sys; from tests.export.test_graphs import *; from tests.export.exported import lora_part\n"
        "parts = (*parts_of(HyperFedZero(**SMALL), IMAGES), lora_part()[0])\n"
        "print(hashlib.sha256(b''.join(map(to_onnx, parts))).hexdigest())"
    )
    root = Path(__file__).resolve().parents[2]
    digests = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=root).stdout for _ in range(2)}
    assert len(digests) == 1


class Doubler(nn.Module):
    """A module with state that training would change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.layer(x))


def doubler_part() -> Part:
    x = PartTensor("x", "float32", ("batch", 3), "")
    return Part("classify", Doubler(), (x,), (PartTensor("y", "float32", ("batch", 2), ""),), judged_by_label=True)


def test_the_callers_module_is_left_as_it_was() -> None:
    part = doubler_part()
    assert isinstance(part.module, nn.Module)
    part.module.train()
    before = {name: tensor.clone() for name, tensor in part.module.state_dict().items()}
    to_onnx(part)
    assert part.module.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in part.module.state_dict().items())


def test_the_gate_refuses_another_result() -> None:
    part = doubler_part()
    graph = to_onnx(part)
    with torch.no_grad():
        assert isinstance(part.module, nn.Module)
        part.module.get_parameter("layer.bias").add_(0.01)
    with pytest.raises(ParityError, match="differs from torch"):
        check_parity(part, graph, "1.19")


def test_the_gate_refuses_a_fixed_batch() -> None:
    part = doubler_part()
    fixed = replace(part, inputs=(PartTensor("x", "float32", (3, 3), ""),), outputs=(PartTensor("y", "float32", (3, 2), ""),))
    with pytest.raises(ParityError, match="shape"):
        check_parity(part, to_onnx(fixed), "1.19")


def test_the_gate_refuses_an_invalid_model() -> None:
    part = doubler_part()
    model = load_model(to_onnx(part))
    model.graph.node[0].output[0] = "elsewhere"
    with pytest.raises(ParityError, match="not valid"):
        check_parity(part, model.SerializeToString(), "1.19")


def test_a_module_that_cannot_be_exported_is_an_input_error() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if float(x.sum()) > 0 else -x

    x, y = (PartTensor(name, "float32", ("batch", 3), "") for name in "xy")
    with pytest.raises(InputError, match=r"cannot be exported.*torch\.where"):
        to_onnx(Part("classify", Branching(), (x,), (y,)))


def test_per_sample_weights_differ_from_row_to_row() -> None:
    settings = HyperFedZero(**SMALL, scope="sample")
    by_name = {part.entry_point: part for part in parts_of(settings, IMAGES)}
    samples = np.random.default_rng(0).integers(0, 256, (4, 16, 16)).astype(np.uint8)
    embedding = open_session(to_onnx(by_name["embed"]), "1.19").run({"samples": samples})[0]
    weights = open_session(to_onnx(by_name["generate"]), "1.19").run({"embedding": embedding})
    names = [output.name for output in by_name["generate"].outputs]
    classify = open_session(to_onnx(by_name["classify"]), "1.19")
    together = classify.run({"samples": samples, **dict(zip(names, weights, strict=True))})[0]
    for row in range(4):
        own = {name: tensor[row : row + 1] for name, tensor in zip(names, weights, strict=True)}
        np.testing.assert_allclose(classify.run({"samples": samples[row : row + 1], **own})[0][0], together[row], atol=1e-5)


def test_an_operator_off_the_list_never_gets_into_a_bundle() -> None:
    node = onnx.helper.make_node("ConstantOfShape", ["s"], ["y"])
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("s", onnx.TensorProto.INT64, [1])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8)
    assert inspect_graph(model.SerializeToString()).operators == {"ConstantOfShape"}
    assert "ConstantOfShape" not in ALLOWED_OPERATORS


def test_small_numbers_are_not_rounded_away() -> None:
    class Careful(nn.Module):
        def forward(self, samples: Tensor) -> Tensor:
            return samples / (samples.abs() + 1e-8) + samples * 1.000001 - samples

    part = Part(
        "classify", Careful(), (PartTensor("samples", "float32", ("batch", 2), ""),), (PartTensor("logits", "float32", ("batch", 2), ""),)
    )
    (logits,) = open_session(to_onnx(part), "1.19").run({"samples": np.array([[0.0, 1e4]], np.float32)})
    assert logits[0, 0] == 0.0
    assert logits[0, 1] > 1.005
