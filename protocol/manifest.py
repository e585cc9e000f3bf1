"""What a bundle says about itself. The signature covers the exact bytes, so nothing here is ever re-encoded to check it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from protocol.device_blocks import CalibrationBlock, DriftBlock, SignatureBlock
from protocol.errors import ManifestError
from protocol.keys import is_public_key
from protocol.schema import JsonValue, SchemaError, decode, parse_json, to_json

FORMAT = "fedtailor-bundle/1"
MAXIMUM_MANIFEST_BYTES = 1024 * 1024
MAXIMUM_FILE_BYTES = 256 * 1024 * 1024
MAXIMUM_BUNDLE_BYTES = 1024 * 1024 * 1024
FILE_NAME = re.compile(
    r"(graphs/[a-z0-9_]{1,64}(\.(fp16|int8))?\.onnx|tensors/[a-z0-9_.-]{1,64}\.safetensors|selftest\.safetensors|README\.md)"
)
MAXIMUM_FILES = 256
MAXIMUM_SAMPLE_VALUES = 2**26
MAXIMUM_VALUES, MAXIMUM_AXES = 2**28, 16  # of one input or output
SAMPLES = "samples"  # the input that every graph on raw samples has
RUNTIME = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?")
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]{1,200}")  # no control characters, none that turn text around
FLOAT32, PRECISIONS = "fp32", ("fp16", "int8")
RAW_DTYPES = ("uint8", "float32")
HEX_64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """A file: its length in bytes and its SHA-256 in hexadecimal."""

    length: int
    sha256: str


@dataclass(frozen=True)
class TensorSpec:
    """A graph input or output; a word in ``shape`` is an axis whose size is free.

    An ``optional`` input may be left out: the graph holds a default for it, whose named axes have size 0.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    meaning: str
    optional: bool = False

    def is_possible(self) -> bool:
        """Tell whether its sizes are positive, few, and small enough for one tensor."""
        sizes = [size for size in self.shape if isinstance(size, int)]
        return len(self.shape) <= MAXIMUM_AXES and all(size > 0 for size in sizes) and math.prod(sizes) <= MAXIMUM_VALUES


@dataclass(frozen=True)
class RawInput:
    """One raw sample as the device feeds it, without a batch axis; normalisation is inside the graphs."""

    dtype: str
    shape: tuple[int, ...]
    minimum: float
    maximum: float
    meaning: str


@dataclass(frozen=True)
class OutputDifference:
    """The largest absolute difference found in one output, and the batch size at which it was found."""

    output: str
    batch: int
    absolute: float


@dataclass(frozen=True)
class Parity:
    """How closely a graph was found to follow the original, at export."""

    batch_sizes: tuple[int, ...]
    absolute_tolerance: float
    relative_tolerance: float
    worst_absolute_difference: float
    label_agreement: float | None
    worst_by_output: tuple[OutputDifference, ...] = ()


@dataclass(frozen=True)
class Variant:
    """The same graph in smaller numbers, and what that was measured to cost and to save.

    Attributes:
        file: Path in the bundle.
        opset: Operator set.
        ir_version: Version of the file format.
        operators: Operators that it uses.
        minimum_onnxruntime: Oldest ONNX Runtime that loads it.
        accuracy: Share of right labels with this variant, on samples that participants held out.
        accuracy_float32: The same with the graph in float32.
        seconds: Median time of one sample on the machine that exported, one thread.
        seconds_float32: The same of the graph in float32.
        worst_absolute_difference: Largest difference of an output from the graph in float32 on those samples.
    """

    file: str
    opset: int
    ir_version: int
    operators: tuple[str, ...]
    minimum_onnxruntime: str
    accuracy: float
    accuracy_float32: float
    seconds: float
    seconds_float32: float
    worst_absolute_difference: float


@dataclass(frozen=True)
class GraphSpec:
    """One entry point; ``variants`` holds it in smaller numbers, by ``fp16`` or ``int8``."""

    file: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    ir_version: int
    operators: tuple[str, ...]
    parity: Parity
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def forms(self) -> tuple[GraphSpec, ...]:
        """Return this graph, and each variant as a graph of its own."""
        return (self, *(self.form(precision) for precision in self.variants))

    def form(self, precision: str) -> GraphSpec:
        """Return the graph in this precision; ``fp32`` is the graph itself."""
        if precision == FLOAT32:
            return self
        own = self.variants[precision]
        return replace(self, file=own.file, opset=own.opset, ir_version=own.ir_version, operators=own.operators, variants={})


@dataclass(frozen=True)
class Personalization:
    """How a device tailors its classifier.

    Attributes:
        scope: ``device``: one classifier from a support set; ``sample``: one for each sample.
        support_size: Unlabelled samples that were used in evaluation: enough for a good classifier.
        embedding_dimension: Length E of the distribution embedding.
        tailored: ``whole`` or ``head`` of the classifier, ``none`` where only the class prior is, or ``input``.
    """

    scope: Literal["device", "sample"]
    support_size: int
    embedding_dimension: int
    tailored: Literal["whole", "head", "none", "input"]


@dataclass(frozen=True)
class MethodEntry:
    """The method, its settings, and its phases as plain data."""

    name: str
    settings: Mapping[str, JsonValue]
    phases: tuple[JsonValue, ...]


@dataclass(frozen=True)
class DataEntry:
    """What the bundle was trained on.

    Attributes:
        name: Name for people.
        participants: Clients that took part.
        training_samples: Samples that they trained on, all together.
        new_devices: Clients that it was scored on.
        partition: How the data became clients.
    """

    name: str
    participants: int
    training_samples: int
    new_devices: int
    partition: str


@dataclass(frozen=True)
class Manifest:
    """The whole manifest.

    Attributes:
        format: ``fedtailor-bundle/1``.
        name: Name for people.
        bundle_version: Grows with every release of the same bundle.
        created: Seconds since 1970, UTC.
        expires: The same, or None for never.
        method: Method, settings and phases.
        classes: Class names in index order.
        raw_input: What the device feeds.
        graphs: Entry point -> graph.
        files: Path in the bundle -> length and digest; all files but the manifest and its signature.
        personalization: How a classifier is tailored; None when there is one for all.
        minimum_onnxruntime: Oldest ONNX Runtime that loads the graphs.
        target: Hardware group that the bundle is for; ``any`` for all.
        coordinator_key: Public key, in hexadecimal, that signs what a coordinator sends; None when there is none.
        producer: Versions of what made the bundle.
        data: What it was trained on; None when the bundle came from no run.
        calibration: For label-shift correction; None when the run has none.
        drift: When a device's distribution has moved; None when nothing watches it.
        distribution_signature: Parts and constants of the distribution signature; None when there is none.
    """

    format: str
    name: str
    bundle_version: int
    created: int
    expires: int | None
    method: MethodEntry
    classes: tuple[str, ...]
    raw_input: RawInput
    graphs: Mapping[str, GraphSpec]
    files: Mapping[str, FileEntry]
    personalization: Personalization | None
    minimum_onnxruntime: str
    target: str
    coordinator_key: str | None
    producer: Mapping[str, str]
    data: DataEntry | None = None
    calibration: CalibrationBlock | None = None
    drift: DriftBlock | None = None
    distribution_signature: SignatureBlock | None = None

    def __post_init__(self) -> None:
        """Refuse a manifest that contradicts itself."""
        for holds, what, got in self._conditions():
            if not holds:
                raise ManifestError(f"the manifest is wrong: {what}", got=repr(got)[:80])  # hostile text must not reach a terminal as it is

    def _conditions(self) -> list[tuple[bool, str, object]]:
        """Return what must hold, how to say it, and what there is."""
        named = {form.file for graph in self.graphs.values() for form in graph.forms()}
        variants = [each for graph in self.graphs.values() for each in graph.variants.values()]
        precisions = {precision for graph in self.graphs.values() for precision in graph.variants}
        bad_names = [path for path in self.files if not FILE_NAME.fullmatch(path)]
        bad_entries = [
            path for path, entry in self.files.items() if not (0 < entry.length <= MAXIMUM_FILE_BYTES and HEX_64.fullmatch(entry.sha256))
        ]
        shapes = [(name, output.shape) for name in ("embed", "features") if name in self.graphs for output in self.graphs[name].outputs]
        misshapen = [name for name, shape in shapes if len(shape) != 2 or not isinstance(shape[1], int)]
        total = sum(entry.length for entry in self.files.values())
        return [
            (self.format == FORMAT, f"the format must be {FORMAT}", self.format),
            (2 <= len(self.classes) <= 10_000, "there must be 2 to 10000 classes", len(self.classes)),
            (len(set(self.classes)) == len(self.classes), "class names must differ", self.classes),
            (not bad_names, "a file name is not allowed", bad_names),
            (not bad_entries, "a file's length or digest is not possible", bad_entries),
            (total <= MAXIMUM_BUNDLE_BYTES, f"all files together must stay below {MAXIMUM_BUNDLE_BYTES} bytes", total),
            (named <= self.files.keys() or not self.files, "every graph must be a listed file", sorted(named - self.files.keys())),
            (
                all(RUNTIME.fullmatch(each.minimum_onnxruntime) for each in variants),
                "a variant's oldest ONNX Runtime must be a version",
                variants,
            ),
            (all(each.seconds > 0 and each.seconds_float32 > 0 for each in variants), "a variant's seconds must be positive", variants),
            (precisions <= set(PRECISIONS), f"variants must be {' or '.join(PRECISIONS)}", sorted(precisions)),
            (all(path.endswith(".onnx") for path in named), "every graph must be an .onnx file", sorted(named)),
            (not self._impossible(), "sizes must be possible", self._impossible()),
            ("classify" in self.graphs, "there must be an entry point classify", sorted(self.graphs)),
            (self.raw_input.minimum < self.raw_input.maximum, "the raw range must not be empty", self.raw_input),
            (
                self.coordinator_key is None or is_public_key(self.coordinator_key),
                "the coordinator's key is no public key",
                self.coordinator_key,
            ),
            (all(size > 0 for size in self.raw_input.shape), "raw sizes must be positive", self.raw_input.shape),
            (math.prod(self.raw_input.shape) <= MAXIMUM_SAMPLE_VALUES, "a raw sample must be of a possible size", self.raw_input.shape),
            (self.bundle_version >= 1, "the bundle's version must be at least 1", self.bundle_version),
            (bool(RUNTIME.fullmatch(self.minimum_onnxruntime)), "the oldest ONNX Runtime must be a version", self.minimum_onnxruntime),
            (all(map(NAME.fullmatch, self._texts())), "method, target and data must be named by short lines of text", self._texts()),
            (bool(NAME.fullmatch(self.name)), "the name must be a short line of text", self.name),
            (all(NAME.fullmatch(name) for name in self.classes), "class names must be short lines of text", self.classes),
            (len(self.files) <= MAXIMUM_FILES, f"there must be at most {MAXIMUM_FILES} files", len(self.files)),
            (self.raw_input.dtype in RAW_DTYPES, f"raw samples must be {' or '.join(RAW_DTYPES)}", self.raw_input.dtype),
            (all(graph.outputs for graph in self.graphs.values()), "every graph must have outputs", sorted(self.graphs)),
            (not misshapen, "embed and features must give one vector a sample", misshapen),
            (
                not self._misfed(),
                f"raw samples are {self.raw_input.dtype} {list(self.raw_input.shape)}, a graph takes other samples",
                self._misfed(),
            ),
            *self._block_conditions(),
        ]

    def _block_conditions(self) -> list[tuple[bool, str, object]]:
        """Return what must hold of the optional blocks."""
        calibration, drift, signature = self.calibration, self.drift, self.distribution_signature
        return [
            (calibration is None or calibration.is_possible(len(self.classes)), "the calibration does not fit the classes", calibration),
            (drift is None or drift.is_possible(), "the drift block is not possible", drift),
            (drift is None or "embed" in self.graphs, "drift needs an entry point embed", sorted(self.graphs)),
            (signature is None or signature.is_possible(), "the distribution signature is not possible", signature),
        ]

    def _texts(self) -> list[str]:
        """Return what people read on one line."""
        return [self.target, self.method.name, *([self.data.name, self.data.partition] if self.data else [])]

    def _impossible(self) -> list[str]:
        """Return the inputs and outputs that nobody could hold in memory."""
        tensors = [(name, tensor) for name, graph in self.graphs.items() for tensor in (*graph.inputs, *graph.outputs)]
        return [f"{name}.{tensor.name}" for name, tensor in tensors if not tensor.is_possible()]

    def _misfed(self) -> list[str]:
        """Return the graphs that take other samples than the raw input says."""
        raw = self.raw_input
        fed = [(name, tensor) for name, graph in self.graphs.items() for tensor in graph.inputs if tensor.name == SAMPLES]
        return [name for name, tensor in fed if (tensor.dtype, tensor.shape[1:]) != (raw.dtype, raw.shape)]

    def feature_dimension(self) -> int:
        """Return the length D of the features that prototypes are made of.

        Raises:
            ManifestError: The bundle has none.
        """
        graph = self.graphs.get("features")
        if graph is None:
            raise ManifestError(
                "this bundle has no features for prototypes", expected="an entry point features", hint="export HyperFedZero"
            )
        return int(graph.outputs[0].shape[1])

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON, the same bytes for the same content."""
        return to_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Return the manifest in JSON bytes.

        Raises:
            ManifestError: Malformed, or it contradicts itself.
        """
        try:
            return decode(cls, parse_json(data), "manifest")
        except SchemaError as fault:
            raise ManifestError(f"the manifest is malformed at {fault.where}", expected=fault.expected, got=fault.got) from fault
