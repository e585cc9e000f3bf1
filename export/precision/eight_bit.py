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

import numpy as np
from numpy.typing import NDArray
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from export.graphs import clean, load_model

CALIBRATION_ROWS = 32  # samples in a calibration batch
CHANNEL_AXES = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0, "MatMul": 1}  # exported linear layers keep their weights as (out, in)

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


def to_eight_bits(graph: bytes, calibration: Mapping[str, Array]) -> bytes:
    """Return the graph in eight bits, as single-file ONNX bytes.

    Args:
        graph: An exported graph in float32.
        calibration: Inputs by name, (N, ...) each, N samples of what the graph will see; used for convolutional graphs only.
    """
    with tempfile.TemporaryDirectory() as folder, _quiet():
        source, prepared, target = (Path(folder) / name for name in ("source.onnx", "prepared.onnx", "target.onnx"))
        source.write_bytes(graph)
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        if is_convolutional(graph):
            _quantise_statically(prepared, target, calibration)
        else:
            quantization.quantize_dynamic(prepared, target, weight_type=quantization.QuantType.QInt8, per_channel=True, reduce_range=True)
        return clean(load_model(target.read_bytes()))


def is_convolutional(graph: bytes) -> bool:
    """Tell whether a graph holds a convolution."""
    return any(node.op_type in ("Conv", "ConvTranspose") for node in load_model(graph).graph.node)


def _quantise_statically(source: Path, target: Path, calibration: Mapping[str, Array]) -> None:
    """Write the quantised graph: unsigned activations and signed weights suit x86 and Arm alike."""
    quantization.quantize_static(
        source,
        target,
        CalibrationBatches(calibration),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        per_channel=True,
        reduce_range=True,  # 7-bit weights: processors without VNNI saturate sums of two 8-bit products, a tenth of the output away
        extra_options={"QDQOpTypePerChannelSupportToAxis": CHANNEL_AXES},
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
