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

from export.divergence import first_divergence
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


@pytest.mark.parametrize(
    "function",
    [lambda x: x.reshape(3, 2) * 1, lambda x: x + torch.ones(3, 2), lambda x: torch.cat([x[at : at + 1] for at in range(x.shape[0])])],
    ids=["reshape", "broadcast", "loop"],
)
def test_code_that_fixes_the_batch_is_refused_with_advice(function: Callable[[Tensor], Tensor]) -> None:
    part = Part("classify", function, PART.inputs, PART.outputs)
    with pytest.raises(ParityError, match=r"fixes the axis batch: use x\.shape\[0\]"):
        check_parity(part, to_onnx(part), "1.19")


def test_the_worst_difference_of_each_output_is_told_with_its_batch() -> None:
    class Two(nn.Module):
        def forward(self, samples: Tensor) -> tuple[Tensor, Tensor]:
            # The first drifts by the batch's size, within the tolerance; the second not at all.
            return samples + 1e-7 * samples.shape[0] * torch.ones(2), samples

    outputs = tuple(PartTensor(name, "float32", ("batch", 2), "") for name in ("drifting", "same"))
    part = Part("features", Two(), PART.inputs, outputs)
    plain = Part("features", lambda samples: (samples * 1, samples), PART.inputs, outputs)
    drifting, same = check_parity(part, to_onnx(plain), "1.19").worst_by_output
    assert (drifting.output, drifting.batch) == ("drifting", 64)
    assert drifting.absolute == pytest.approx(6.4e-6, rel=0.1)
    assert (same.output, same.absolute) == ("same", 0.0)


def test_where_graph_and_module_part_is_found_by_function() -> None:
    part = Part("classify", nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), PART.inputs, PART.outputs)
    other = Part("classify", nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)), PART.inputs, PART.outputs)
    other.module.load_state_dict(part.module.state_dict())  # type: ignore[union-attr]  # both are modules
    feeds = {"samples": np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)}
    assert first_divergence(part, to_onnx(part), feeds, 1e-5, 1e-4) is None
    found = first_divergence(part, to_onnx(other), feeds, 1e-5, 1e-4)
    assert found is not None
    assert (found.layer, found.operation) == ("2", "aten.linear.default")  # relu has another name than tanh; what follows differs


def test_a_foreign_graph_without_names_to_compare_says_so() -> None:
    with pytest.raises(ParityError, match="no inner value of the graph differs"):
        check_parity(PART, graph(WEIGHT + np.float32(1e-3)), "1.19")
