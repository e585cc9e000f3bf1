"""What the parity gate refuses, on a module so small that its graph is written by hand."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from export.graphs import to_onnx
from export.parity import check_parity
from protocol.errors import ParityError
from trainer.methods.parts import Part, PartTensor

WEIGHT = np.array([[1.0, -1.0], [0.5, 2.0]], np.float32)


class Classifier(nn.Module):
    def forward(self, samples: Tensor) -> Tensor:
        return samples @ torch.from_numpy(WEIGHT)


PART = Part(
    "classify",
    Classifier(),
    (PartTensor("samples", "float32", ("batch", 2), ""),),
    (PartTensor("logits", "float32", ("batch", 2), ""),),
    judged_by_label=True,
)


def graph(weight: np.ndarray = WEIGHT, names: tuple[str, str] = ("samples", "logits"), axis: str | int = "batch") -> bytes:
    """Return ``logits = samples @ weight`` as ONNX bytes."""
    source, target = names
    nodes = [helper.make_node("MatMul", [source, "weight"], [target])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [axis, 2]) for name in names]
    constant = onnx.numpy_helper.from_array(weight.astype(np.float32), "weight")
    built = helper.make_graph(nodes, "graph", values[:1], values[1:], [constant])
    return bytes(helper.make_model(built, ir_version=8, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())


def test_an_equal_graph_passes_with_its_figures() -> None:
    parity = check_parity(PART, graph(), "1.19")
    assert parity.label_agreement == 1.0
    assert parity.worst_absolute_difference <= 1e-6


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (lambda: graph(WEIGHT + np.float32(1e-3)), "differs from torch"),
        (lambda: graph(np.full_like(WEIGHT, np.nan)), "differs from torch"),
        (lambda: graph(WEIGHT[:, ::-1]), "differs from torch"),
        (lambda: graph(names=("samples", "scores")), "names"),
        (lambda: graph(names=("x", "logits")), "names"),
        (lambda: graph(axis="rows"), "shape"),
        (lambda: graph(axis=2), "shape"),
        (lambda: b"", "not valid"),
    ],
)
def test_another_graph_is_refused(made: Callable[[], bytes], match: str) -> None:
    with pytest.raises(ParityError, match=match):
        check_parity(PART, made(), "1.19")


def test_labels_are_judged_beside_the_tolerance() -> None:
    class Close(nn.Module):
        def forward(self, samples: Tensor) -> Tensor:
            return torch.stack([samples[:, 0], samples[:, 0] + 1e-6], dim=1)  # (B, 2): the second always wins, by little

    twin = np.array([[1.0, 1.0], [0.0, 0.0]], np.float32)  # within the tolerance, but the first wins every tie
    part = Part("classify", Close(), PART.inputs, PART.outputs, judged_by_label=True)
    with pytest.raises(ParityError, match="labels"):
        check_parity(part, graph(twin), "1.19")


def test_names_with_dots_and_a_free_axis_survive_the_exporter() -> None:
    class Tailored(nn.Module):
        def forward(self, samples: Tensor, *weights: Tensor) -> Tensor:
            return torch.einsum("bi,bio->bo", samples, weights[0]) + weights[1]

    own = (PartTensor("weight.0.kernel", "float32", ("batch", 2, 2), ""), PartTensor("weight.0.bias", "float32", ("batch", 2), ""))
    part = Part("classify", Tailored(), (*PART.inputs, *own), PART.outputs)
    content = to_onnx(part)
    assert [value.name for value in onnx.load_model_from_string(content).graph.input] == ["samples", "weight.0.kernel", "weight.0.bias"]
    check_parity(part, content, "1.19")


def test_the_exporter_leaves_filters_and_loggers_as_they_were() -> None:
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level, list(warnings.filters)
    to_onnx(PART)
    assert (logger.level, list(warnings.filters)) == before
