"""A whole bundle with graphs written by hand, and what they compute in numpy: device tests need neither torch nor onnx.

Raw samples are (2, 2) uint8; X = 4 inputs, E = 3 embedding, D = 5 features, C = 3 classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from protocol.bundle import write_bundle
from protocol.keys import PrivateKey
from protocol.manifest import GraphSpec, Manifest, MethodEntry, Parity, Personalization, RawInput, TensorSpec
from protocol.tensors import encode_tensors
from tests.protocol.samples import bytes_field, number_field

CLASSES = ("cat", "dog", "fox")
RAW = RawInput("uint8", (2, 2), 0.0, 255.0, "four pixels")
CODES = {"float32": 1, "uint8": 2, "int64": 7}
_RANDOM = np.random.default_rng(3)
EMBED = (_RANDOM.standard_normal((4, 3)) / 200).astype(np.float32)
FEATURES = (_RANDOM.standard_normal((4, 5)) / 200).astype(np.float32)
KERNEL = (_RANDOM.standard_normal((3, 12)) / 50).astype(np.float32)
BIAS = _RANDOM.standard_normal((3, 3)).astype(np.float32)
FLAT = {"flat": np.array([-1, 4], np.int64)}
TO_ROWS = [("Cast", ["samples"], "cast", {"to": 1}), ("Reshape", ["cast", "flat"], "rows", {})]
SAMPLES = TensorSpec("samples", "uint8", ("batch", 2, 2), "raw samples")
EMBEDDING = TensorSpec("embedding", "float32", ("batch", 3), "embedding")
LOGITS = TensorSpec("logits", "float32", ("batch", 3), "class scores")

Node = tuple[str, list[str], str, Mapping[str, int]]
Scope = Literal["device", "sample"]


@dataclass(frozen=True)
class TinyGraph:
    """One entry point: what it takes and gives, its nodes (operator, inputs, output, integer attributes), its constants."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    nodes: list[Node]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        content = b"".join(bytes_field(1, _node(*node)) for node in self.nodes) + bytes_field(2, "tiny")
        content += b"".join(bytes_field(5, _constant(name, value)) for name, value in self.constants.items())
        content += b"".join(bytes_field(11, _value(spec)) for spec in self.inputs)
        content += b"".join(bytes_field(12, _value(spec)) for spec in self.outputs)
        return number_field(1, 8) + bytes_field(7, content) + bytes_field(8, bytes_field(1, "") + number_field(2, 18))

    def spec(self, entry_point: str) -> GraphSpec:
        operators = tuple(sorted({node[0] for node in self.nodes}))
        return GraphSpec(f"graphs/{entry_point}.onnx", self.inputs, self.outputs, 18, 8, operators, Parity((1, 2), 1e-5, 1e-4, 0.0, None))


def _node(operator: str, inputs: list[str], output: str, attributes: Mapping[str, int]) -> bytes:
    content = b"".join(bytes_field(1, name) for name in inputs) + bytes_field(2, output) + bytes_field(4, operator)
    integers = [bytes_field(1, name) + number_field(3, value) + number_field(20, 2) for name, value in attributes.items()]
    return content + b"".join(bytes_field(5, each) for each in integers)


def _constant(name: str, value: np.ndarray) -> bytes:
    sizes = b"".join(number_field(1, size) for size in value.shape)
    return sizes + number_field(2, CODES[str(value.dtype)]) + bytes_field(8, name) + bytes_field(9, value.tobytes())


def _value(spec: TensorSpec) -> bytes:
    axes = [bytes_field(1, bytes_field(2, axis) if isinstance(axis, str) else number_field(1, axis)) for axis in spec.shape]
    tensor = number_field(1, CODES[spec.dtype]) + bytes_field(2, b"".join(axes))
    return bytes_field(1, spec.name) + bytes_field(2, bytes_field(1, tensor))


def weights(leading: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    """Return the generated tensors."""
    kernel = TensorSpec("weight.0.kernel", "float32", (*leading, 4, 3), "generated")
    return (kernel, TensorSpec("weight.0.bias", "float32", (*leading, 3), "generated"))


def graphs(scope: Scope | None) -> dict[str, TinyGraph]:
    """Return all entry points; with scope None one classifier for all, as FedAvg exports it."""
    if scope is None:
        nodes: list[Node] = [*TO_ROWS, ("MatMul", ["rows", "kernel"], "logits", {})]
        return {"classify": TinyGraph((SAMPLES,), (LOGITS,), nodes, {**FLAT, "kernel": EMBED})}
    to_embedding: list[Node] = [*TO_ROWS, ("MatMul", ["rows", "matrix"], "raw", {}), ("Softmax", ["raw"], "embedding", {"axis": 1})]
    generate: list[Node] = [
        ("MatMul", ["embedding", "to_kernel"], "written", {}),
        ("Reshape", ["written", "shape"], "weight.0.kernel", {}),
        ("MatMul", ["embedding", "to_bias"], "weight.0.bias", {}),
    ]
    device: list[Node] = [("MatMul", ["rows", "weight.0.kernel"], "product", {})]
    each: list[Node] = [
        ("Unsqueeze", ["rows", "one"], "row", {}),
        ("MatMul", ["row", "weight.0.kernel"], "single", {}),
        ("Squeeze", ["single", "one"], "product", {}),
    ]
    product = device if scope == "device" else each
    classify: list[Node] = [*TO_ROWS, *product, ("Add", ["product", "weight.0.bias"], "logits", {})]
    features = (TensorSpec("features", "float32", ("batch", 5), "features"),)
    writing: dict[str, np.ndarray] = {"to_kernel": KERNEL, "to_bias": BIAS, "shape": np.array([-1, 4, 3], np.int64)}
    classify_inputs = (SAMPLES, *weights(() if scope == "device" else ("batch",)))
    one: dict[str, np.ndarray] = {} if scope == "device" else {"one": np.array([1], np.int64)}
    return {
        "embed": TinyGraph((SAMPLES,), (EMBEDDING,), to_embedding, {**FLAT, "matrix": EMBED}),
        "features": TinyGraph(
            (SAMPLES,), features, [*TO_ROWS, ("MatMul", ["rows", "matrix"], "features", {})], {**FLAT, "matrix": FEATURES}
        ),
        "generate": TinyGraph((EMBEDDING,), weights(("batch",)), generate, writing),
        "classify": TinyGraph(classify_inputs, (LOGITS,), classify, {**FLAT, **one}),
    }


def manifest(entry_points: Mapping[str, TinyGraph], scope: Scope | None) -> Manifest:
    """Return the manifest of these graphs."""
    return Manifest(
        format="fedtailor-bundle/1",
        name="tiny",
        bundle_version=1,
        created=1_700_000_000,
        expires=None,
        method=MethodEntry("hyperfedzero", {}, ()),
        classes=CLASSES,
        raw_input=RAW,
        graphs={name: graph.spec(name) for name, graph in entry_points.items()},
        files={},
        personalization=None if scope is None else Personalization(scope, 8, 3, "whole"),
        minimum_onnxruntime="1.19",
        target="any",
        coordinator_key=None,
        producer={},
    )


def write_tiny(directory: Path, key: PrivateKey, scope: Scope | None = "device", **changes: object) -> Path:
    """Write a signed bundle, with some fields of the manifest replaced, and return its folder."""
    entry_points = graphs(scope)
    changed = replace(manifest(entry_points, scope), **changes)  # type: ignore[arg-type]  # fields by name
    files = {f"graphs/{name}.onnx": graph.to_bytes() for name, graph in entry_points.items()}
    write_bundle(directory, changed, {**files, "selftest.safetensors": golden(scope)}, key)
    return directory


def golden(scope: Scope | None, shift: float = 0.0) -> bytes:
    """Return golden samples and outputs; ``shift`` makes the logits wrong by that much."""
    samples = raw_samples(8, seed=9)
    if scope is None:
        scores = samples.reshape(-1, 4).astype(np.float64) @ EMBED
        return encode_tensors({"samples": samples, "logits": (scores + shift).astype(np.float32)})
    outputs = {"embedding": embed(samples), "features": features(samples), "logits": logits(samples, samples, scope) + shift}
    return encode_tensors({"samples": samples, **{name: value.astype(np.float32) for name, value in outputs.items()}})


def raw_samples(count: int, seed: int = 0) -> np.ndarray:
    """Return raw samples (count, 2, 2) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (count, 2, 2)).astype(np.uint8)


def embed(samples: np.ndarray) -> np.ndarray:
    """Return the embeddings (N, 3) that the graph should give."""
    scores = samples.reshape(-1, 4).astype(np.float64) @ EMBED.astype(np.float64)
    exponents = np.exp(scores - scores.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def features(samples: np.ndarray) -> np.ndarray:
    """Return the features (N, 5) that the graph should give."""
    return samples.reshape(-1, 4).astype(np.float64) @ FEATURES


def logits(support: np.ndarray, query: np.ndarray, scope: Scope) -> np.ndarray:
    """Return the logits (B, 3) that a tailored classifier should give."""
    embedding = embed(support).mean(axis=0, keepdims=True) if scope == "device" else embed(query)
    kernel, bias = (embedding @ KERNEL).reshape(-1, 4, 3), embedding @ BIAS
    return (query.reshape(-1, 1, 4).astype(np.float64) @ kernel)[:, 0] + bias
