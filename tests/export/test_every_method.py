"""Every method's parts pass the gate, run on old runtimes by their stamps, and carry nothing of this machine."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

import pytest
import torch

from export.graphs import load_model
from export.parity import BATCH_SIZES
from protocol.errors import InputError
from protocol.graph_sizes import check_sizes
from protocol.onnx_graph import inspect_graph
from protocol.operators import ALLOWED_OPERATORS
from tests.export.exported import WITHOUT_PARTS, Exported, exported_lora, exported_method, exported_variant
from tests.source_tree import ROOT
from tests.trainer.methods.small_federation import begin, bound, make_clients
from trainer.methods.registry import METHODS

EXPORTED = [name for name in METHODS if name not in WITHOUT_PARTS]
LARGE = [
    ("lenet", (3, 16, 16)),
    ("zenkenet", (3, 10, 10)),
    ("resnet8", (3, 8, 8)),
    ("cnn", (3, 8, 8)),
]
PLACES = [str(ROOT), str(Path.home()), str(Path(torch.__file__).parent), "site-packages", "Traceback", "pkg.torch"]


def check(case: Exported) -> None:
    """Check what must hold of every exported part."""
    facts = inspect_graph(case.graph)
    assert (facts.ir_version, facts.opsets) == (8, {"": 18})
    assert facts.operators <= ALLOWED_OPERATORS
    assert not facts.external_data
    check_sizes(facts.nodes, {each.name: each.shape for each in case.part.inputs}, facts.constants, facts.constant_shapes)
    assert case.parity.batch_sizes == BATCH_SIZES == (1, 2, 3, 7, 17, 64)
    assert case.parity.label_agreement == (1.0 if case.part.judged_by_label else None)
    assert [each.output for each in case.parity.worst_by_output] == [output.name for output in case.part.outputs]
    assert max(each.absolute for each in case.parity.worst_by_output) == case.parity.worst_absolute_difference
    assert all(each.batch in BATCH_SIZES for each in case.parity.worst_by_output)
    refuse_traces(case.graph)


def refuse_traces(graph: bytes) -> None:
    """No path, no user name and no stack trace in any byte; short words are looked for outside weights, which are any bytes."""
    assert [place for place in PLACES if place.encode() in graph] == []
    model = load_model(graph)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    words = rf"/\w+/|\.py\b|torch|stack_trace|\b{re.escape(getpass.getuser())}\b"
    assert re.findall(words, str(model)) == []


@pytest.mark.parametrize("name", EXPORTED)
def test_every_method_exports(name: str) -> None:
    cases = exported_method(name)
    assert "classify" in {case.part.entry_point for case in cases}
    for case in cases:
        check(case)


@pytest.mark.parametrize("name", sorted(WITHOUT_PARTS))
def test_a_method_without_a_classifier_for_new_devices_says_so(name: str) -> None:
    method = bound(name, torch.float32)
    with pytest.raises(InputError, match="train "):
        method.parts(begin(method, make_clients()))


@pytest.mark.parametrize(
    ("model", "shape", "scope", "tailored"),
    [("lenet-s", (1, 16, 16), "sample", "whole"), ("mlp-6", (5,), "sample", "input"), ("mlp-6-5", (3, 4, 4), "device", "head")],
)
def test_hyperfedzero_exports_images_and_vectors(model: str, shape: tuple[int, ...], scope: str, tailored: str) -> None:
    for case in exported_variant(model, shape, scope, tailored):
        check(case)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("model", "shape"), LARGE)
@pytest.mark.parametrize(("scope", "tailored"), [("device", "whole"), ("device", "head"), ("sample", "whole"), ("sample", "head")])
def test_hyperfedzero_exports_every_network(model: str, shape: tuple[int, ...], scope: str, tailored: str) -> None:
    for case in exported_variant(model, shape, scope, tailored):
        check(case)


def test_the_traces_would_be_found() -> None:
    """A graph that does carry a path fails the check above."""
    model = load_model(exported_lora().graph)
    model.graph.node[0].name = f"{Path.home()}/secret.py"
    with pytest.raises(AssertionError):
        refuse_traces(model.SerializeToString())
