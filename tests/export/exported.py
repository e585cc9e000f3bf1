"""Exported parts that tests share: each case is exported once in a process."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from export.bundling import tensor_spec
from export.graphs import to_onnx
from export.parity import check_parity
from protocol.manifest import GraphSpec, Parity
from protocol.onnx_graph import inspect_graph
from tests.trainer.methods.small_federation import begin, bound, make_clients
from trainer.hypernetwork import HypernetworkSize
from trainer.lora import LoraPattern, with_lora
from trainer.lora_inputs import LoraInputs
from trainer.methods.base import Task
from trainer.methods.distribution_embedding import ExtractorSize
from trainer.methods.hyperfedzero import HyperFedZero
from trainer.methods.parts import Part, PartTensor

UNLIKE = {"fd", "fedgh", "fedkd", "fedproto", "fml", "lg-fedavg", "pfedes", "pfedes-paper", "standalone"}
WITHOUT_PARTS = {"local", "local-lora", "pfedhn", *UNLIKE}  # they make no classifier that a new device could run
SMALL: dict[str, Any] = {"extractor": ExtractorSize(hidden=5, embedding=4), "hypernetwork": HypernetworkSize(64, 3, 7)}


class Exported(NamedTuple):
    """A part, its graph, and what the gate found."""

    part: Part
    graph: bytes
    parity: Parity


def pass_gate(part: Part) -> Exported:
    """Export a part and let it through the gate."""
    graph = to_onnx(part)
    return Exported(part, graph, check_parity(part, graph, "1.19"))


@cache
def exported_method(name: str) -> tuple[Exported, ...]:
    """Return the parts of a method with small settings."""
    method = bound(name, torch.float32)
    return tuple(map(pass_gate, method.parts(begin(method, make_clients()))))


@cache
def exported_variant(model: str, shape: tuple[int, ...], scope: str, tailored: str) -> tuple[Exported, ...]:
    """Return the parts of HyperFedZero on float32 samples of this shape."""
    settings = HyperFedZero(model=model, scope=scope, tailored=tailored, **SMALL)  # type: ignore[arg-type]  # words from a table
    method = settings.bind(Task(shape, "float32", -1.0, 1.0, ("a", "b", "c")))
    return tuple(map(pass_gate, method.parts(method.initial_state(0))))


def lora_part() -> tuple[Part, LoraInputs]:
    """Return a small classifier with LoRA of scale 2 on both of its layers, and its model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model = LoraInputs(with_lora(plain, [LoraPattern(r"[02]", rank=4, alpha=8.0)], seed=0))
    factors = model.factor_tensors()
    samples, logits = PartTensor("samples", "float32", ("batch", 6), "", -1.0), PartTensor("logits", "float32", ("batch", 3), "")
    return Part("classify", model, (samples, *factors), (logits,), judged_by_label=True, gathered=len(factors)), model


def lora_factors(rank: int) -> dict[str, np.ndarray]:
    """Return factors of a rank that change the answer."""
    random = np.random.default_rng(rank)
    shapes = {each.name: [rank if isinstance(axis, str) else axis for axis in each.shape] for each in lora_part()[1].factor_tensors()}
    return {name: random.standard_normal(shape).astype(np.float32) / 2 for name, shape in shapes.items()}


@cache
def exported_lora() -> Exported:
    """Return the exported classifier with LoRA."""
    return pass_gate(lora_part()[0])


def lora_spec() -> GraphSpec:
    """Return the manifest's entry of the classifier with LoRA, without exporting it again."""
    case = exported_lora()
    inputs, outputs = (tuple(map(tensor_spec, tensors)) for tensors in (case.part.inputs, case.part.outputs))
    return GraphSpec("graphs/classify.onnx", inputs, outputs, 18, 8, tuple(sorted(inspect_graph(case.graph).operators)), case.parity)
