"""What the tests of this folder share: a tiny ONNX model written by hand, a manifest around it, and messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from protocol.bundle import SIGNATURE_CONTEXT
from protocol.keys import PrivateKey
from protocol.manifest import GraphSpec, Manifest, MethodEntry, Parity, RawInput, TensorSpec
from protocol.messages import (
    Cancel,
    ChannelHead,
    Done,
    EvaluationReport,
    Fail,
    GlobalPrototypes,
    Message,
    Offer,
    ParameterUpdate,
    Presence,
    PrototypeUpdate,
    Receipt,
    RoundResult,
    RoundTask,
    Want,
)
from protocol.signatures import SignatureFile
from protocol.tensors import encode_tensors


def varint(value: int) -> bytes:
    """Return an integer as a protobuf varint."""
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def bytes_field(number: int, value: bytes | str) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def value_info(name: str, shape: tuple[int | str, ...]) -> bytes:
    """Return a ValueInfoProto of a float32 tensor."""
    axes = [bytes_field(1, bytes_field(2, axis) if isinstance(axis, str) else number_field(1, axis)) for axis in shape]
    tensor = number_field(1, 1) + bytes_field(2, b"".join(axes))
    return bytes_field(1, name) + bytes_field(2, bytes_field(1, tensor))


def initializer(name: str, values: np.ndarray) -> bytes:
    """Return a TensorProto of float32 entries."""
    sizes = b"".join(number_field(1, size) for size in values.shape)
    return sizes + number_field(2, 1) + bytes_field(8, name) + bytes_field(9, values.astype("<f4").tobytes())


@dataclass(frozen=True)
class ModelParts:
    """A model ``logits = samples @ weight`` in pieces that a test may replace or add to."""

    operator: str = "MatMul"
    domain: str = ""
    node: bytes = b""
    tensor: bytes = field(default_factory=lambda: initializer("weight", np.arange(6, dtype=np.float32).reshape(3, 2)))
    graph: bytes = b""
    model: bytes = b""

    def to_bytes(self) -> bytes:
        node = bytes_field(1, "samples") + bytes_field(1, "weight") + bytes_field(2, "logits") + bytes_field(4, self.operator)
        node += bytes_field(7, self.domain) if self.domain else b""
        graph = bytes_field(1, node + self.node) + bytes_field(2, "tiny") + bytes_field(5, self.tensor)
        graph += bytes_field(11, value_info("samples", ("N", 3))) + bytes_field(12, value_info("logits", ("N", 2)))
        opset = bytes_field(1, "") + number_field(2, 18)
        return number_field(1, 8) + bytes_field(7, graph + self.graph) + bytes_field(8, opset) + self.model


def graph_spec() -> GraphSpec:
    """Return what the manifest says of the tiny model."""
    return GraphSpec(
        file="graphs/classify.onnx",
        inputs=(TensorSpec("samples", "float32", ("N", 3), "raw samples"),),
        outputs=(TensorSpec("logits", "float32", ("N", 2), "scores of the classes"),),
        opset=18,
        ir_version=8,
        operators=("MatMul",),
        parity=Parity((1, 2), 1e-5, 1e-4, 2e-7, None),
    )


def manifest() -> Manifest:
    """Return a manifest before ``write_bundle`` fills in its files."""
    return Manifest(
        format="fedtailor-bundle/1",
        name="tiny",
        bundle_version=1,
        created=1_700_000_000,
        expires=None,
        method=MethodEntry("fedavg", {"rate": 0.1, "nested": {"list": [1, None, "text"]}}, ({"repeat": "step", "n": 20},)),
        classes=("cat", "dog"),
        raw_input=RawInput("float32", (3,), 0.0, 1.0, "three numbers"),
        graphs={"classify": graph_spec()},
        files={},
        personalization=None,
        minimum_onnxruntime="1.19",
        target="any",
        coordinator_key=None,
        producer={"fedtailor": "0.1.0"},
    )


def sign_as(folder: Path, manifest_bytes: bytes, *keys: PrivateKey) -> None:
    """Write a manifest into a bundle's folder, signed by these keys."""
    message = SIGNATURE_CONTEXT + manifest_bytes
    signed = SignatureFile.by(keys[0], message)
    for key in keys[1:]:
        signed = signed.with_signature(key, message)
    (folder / "manifest.json").write_bytes(manifest_bytes)
    (folder / "manifest.sig").write_bytes(signed.to_bytes())


def bundle_files() -> dict[str, bytes]:
    golden = encode_tensors({"samples": np.full((2, 3), 0.5, np.float32), "logits": np.zeros((2, 2), np.float32)})
    return {"graphs/classify.onnx": ModelParts().to_bytes(), "README.md": b"# tiny\n", "selftest.safetensors": golden}


def prototype_update(**changes: object) -> PrototypeUpdate:
    """Return an update of two classes and three features, with some fields replaced."""
    fields: dict[str, object] = {
        "round": 1,
        "classes": np.array([0, 4], dtype=np.int64),
        "means": np.arange(6, dtype=np.float32).reshape(2, 3),
        "counts": np.array([10, 32], dtype=np.int64),
    }
    return PrototypeUpdate(**{**fields, **changes})  # type: ignore[arg-type]  # a test may pass nonsense


def parameter_update(**changes: object) -> ParameterUpdate:
    """Return an update of a layer with 4 inputs and 3 outputs, with some fields replaced."""
    generator = np.random.default_rng(0)
    tree = {"bias": generator.normal(size=3), "weight": generator.normal(size=(3, 4))}
    fields: dict[str, object] = {
        "round": 7,
        "base": "5a" * 32,
        "sample_count": 320,
        "encoding": "float32",
        "metrics": {"loss": 0.693147},
        "tensors": {name: tensor.astype(np.float32) for name, tensor in tree.items()},
    }
    return ParameterUpdate(**{**fields, **changes})  # type: ignore[arg-type]  # a test may pass nonsense


def messages() -> list[Message]:
    """Return one message of each kind."""
    update = prototype_update()
    return [
        update,
        GlobalPrototypes(1, update.classes, update.means, update.counts, 2),
        Receipt("device-1", 3, 14, accepted=False, reason="prototype is of an unknown class", code="malformed"),
        EvaluationReport(1, 80, 0.75, None),
        parameter_update(),
        RoundTask(7, 0, 1.8e9, "5a" * 32, 81_920, 42, "parameters", {"learning_rate": 0.05}, "float16"),
        RoundResult(7, "6b" * 32, 81_920, 19),
        Presence("online", 3, "ab" * 32, "0.1.0", "idle"),
        ChannelHead("ab" * 32, 4, "7c" * 32, 10**6, 1.8e9, None, "open"),
        Offer("8d" * 32, 3 * 2**20 + 5, 32_768, "bundle", None, 1.8e9, np.arange(4 * 32, dtype=np.uint8).reshape(4, 32)),
        Want.of_chunks("8d" * 32, 8, 32_768, [17, 20, 21, 40]),
        Done("8d" * 32),
        Fail("8d" * 32, "quota", "this device has sent 64 MB in an hour"),
        Cancel("8d" * 32, "a newer bundle is out"),
    ]
