"""A graph with weights and activations in eight bits.

Convolutional graphs are quantised statically: scales of activations come from calibration samples, weights have one scale a channel,
and the graph says so with QuantizeLinear and DequantizeLinear pairs (dynamic quantisation would make convolutions several times
slower). Graphs of matrix products alone are quantised dynamically: they need no calibration.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from export.graphs import clean, load_model, serialised
from export.precision.fold_scale import fold_scale
from export.precision.relu_before_pool import relu_before_pool

CALIBRATION_ROWS = 32  # samples in a calibration batch
FEWEST_CHANNELS = 4  # a convolution over fewer has few weights, and its kernel in float32 is the quicker one
PRODUCTS = ("Gemm", "MatMul")
WEIGHTED = ("Conv", *PRODUCTS)
FOLLOWERS = ("MaxPool", "Relu", "Reshape")  # stay in eight bits between two quantised nodes
# One scale a channel. Seven of the eight bits: processors without VNNI add two products in 16 bits, which 8-bit ones overflow.
WEIGHTS: dict[str, Any] = {"per_channel": True, "reduce_range": True, "weight_type": quantization.QuantType.QInt8}

Array = NDArray[np.generic]


class CalibrationBatches(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Hands out the calibration inputs batch by batch.

    Args:
        feeds: Inputs by name, (N, ...) each.
    """

    def __init__(self, feeds: Mapping[str, Array]) -> None:
        self._batches: Iterator[dict[str, Array]] = _batches(feeds)

    def get_next(self) -> dict[str, Array] | None:
        """Return the next batch, or None after the last."""
        return next(self._batches, None)


def to_eight_bits(graph: bytes, calibration: Mapping[str, Array]) -> bytes | None:
    """Return the graph in eight bits, as single-file ONNX bytes, or None where no node of it is worth it.

    Args:
        graph: An exported graph in float32.
        calibration: Inputs by name, (N, ...) each, N samples of what the graph will see; used for convolutional graphs only.
    """
    model = load_model(graph)
    for place, node in enumerate(model.graph.node):
        node.name = f"node_{place}"  # the quantiser knows nodes by their names
    worth = _worth_it(model)
    if not worth:
        return None
    fold_scale(model)
    relu_before_pool(model, worth)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        source, prepared, target = (Path(folder) / name for name in ("source.onnx", "prepared.onnx", "target.onnx"))
        source.write_bytes(serialised(model))
        quant_pre_process(source, prepared, skip_optimization=True, skip_symbolic_shape=True)
        excluded = [
            node.name for node in load_model(prepared.read_bytes()).graph.node if node.op_type in WEIGHTED and node.name not in worth
        ]
        if is_convolutional(graph):
            _quantise_statically(prepared, target, calibration, excluded)
        else:
            _quantise_dynamically(prepared, target, excluded)
        return clean(load_model(target.read_bytes()))


def _worth_it(model: onnx.ModelProto) -> set[str]:
    """Return the names of products and convolutions with constant weights, convolutions over a few channels left out."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    worth = set()
    for node in model.graph.node:
        if node.op_type not in WEIGHTED or node.input[1] not in constants:
            continue
        groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
        if node.op_type in PRODUCTS or groups > 1 or constants[node.input[1]].dims[1] >= FEWEST_CHANNELS:
            worth.add(node.name)
    return worth


def is_convolutional(graph: bytes) -> bool:
    """Tell whether a graph holds a convolution."""
    return any(node.op_type in ("Conv", "ConvTranspose") for node in load_model(graph).graph.node)


def _quantise_statically(source: Path, target: Path, calibration: Mapping[str, Array], excluded: list[str]) -> None:
    """Write the graph with its nodes between QuantizeLinear and DequantizeLinear."""
    quantization.quantize_static(
        source,
        target,
        CalibrationBatches(calibration),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=[*WEIGHTED, *FOLLOWERS],
        nodes_to_exclude=excluded,
        activation_type=quantization.QuantType.QUInt8,
        **WEIGHTS,
    )


def _quantise_dynamically(source: Path, target: Path, excluded: list[str]) -> None:
    """Write the graph with MatMulInteger for its matrix products."""
    options = {"MatMulConstBOnly": True}
    products = ["MatMul"]  # a Gemm becomes one first
    quantization.quantize_dynamic(
        source, target, op_types_to_quantize=products, nodes_to_exclude=excluded, extra_options=options, **WEIGHTS
    )


def _batches(feeds: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Yield the inputs in batches."""
    samples = len(next(iter(feeds.values())))
    for begin in range(0, samples, CALIBRATION_ROWS):
        yield {name: array[begin : begin + CALIBRATION_ROWS] for name, array in feeds.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's advice to run what was just run from the user."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)
