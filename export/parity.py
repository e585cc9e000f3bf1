"""The gate that no graph passes unless it computes what torch computes.

The exporter's own verification only logs, with a loose threshold; a graph can also fix its batch size without a word.
So the bytes that will be shipped are checked, loaded into ONNX Runtime, and compared at several batch sizes.
"""

from __future__ import annotations

import copy

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from edge_runtime.sessions import Session, open_session
from export.graphs import load_model
from protocol.errors import ParityError
from protocol.manifest import Parity
from trainer.methods.parts import Part, PartTensor

BATCH_SIZES = (1, 2, 3, 7, 17, 64)
ABSOLUTE_TOLERANCE = 1e-5
RELATIVE_TOLERANCE = 1e-4
SEED = 20_240_607

Array = NDArray[np.generic]


def check_parity(part: Part, graph: bytes, minimum_runtime: str) -> Parity:
    """Return how closely a graph follows its module.

    Args:
        part: The original.
        graph: The bytes that will be shipped.
        minimum_runtime: Oldest ONNX Runtime that the bundle promises.

    Raises:
        ParityError: Not a valid model, an axis that should be free is fixed, or another result.
    """
    _check_model(part, graph)
    session = open_session(graph, minimum_runtime)
    module = copy.deepcopy(part.module).cpu().eval()
    generator = np.random.default_rng(SEED)
    worst, agreements = 0.0, []
    for batch in BATCH_SIZES:
        feeds = {tensor.name: _random_array(tensor, batch, generator) for tensor in part.inputs}
        expected, got = _run_torch(module, feeds), _run_graph(session, feeds, part.entry_point, batch)
        for tensor, ours, theirs in zip(part.outputs, got, expected, strict=True):
            worst = max(worst, _compare(f"{part.entry_point}.{tensor.name} at batch {batch}", ours, theirs))
        if part.judged_by_label:
            agreements.append(float(np.mean(got[0].argmax(axis=1) == expected[0].argmax(axis=1))))
    agreement = float(np.mean(agreements)) if agreements else None
    if agreement is not None and agreement < 1.0:
        raise ParityError(f"labels of {part.entry_point} differ from torch", expected="the same labels", got=f"{agreement:.2%} equal")
    return Parity(BATCH_SIZES, ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, worst, agreement)


def check_valid(what: str, graph: bytes) -> onnx.ModelProto:
    """Return the model with its shapes inferred.

    Raises:
        ParityError: The checker, or strict shape inference, finds a fault.
    """
    try:
        model = load_model(graph)
        onnx.checker.check_model(model, full_check=True)
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, DecodeError) as error:
        raise ParityError(f"{what} is not valid", got=str(error)[:500]) from error


def _check_model(part: Part, graph: bytes) -> None:
    """Refuse an invalid model, and one whose inputs and outputs are not those of the part."""
    inferred = check_valid(f"the graph of {part.entry_point}", graph)
    for tensors, values in ((part.inputs, inferred.graph.input), (part.outputs, inferred.graph.output)):
        if [tensor.name for tensor in tensors] != [value.name for value in values]:
            raise ParityError(f"names of {part.entry_point} differ", expected=[t.name for t in tensors], got=[v.name for v in values])
        for tensor, value in zip(tensors, values, strict=True):
            kind = value.type.tensor_type
            shape = tuple(axis.dim_param or axis.dim_value for axis in kind.shape.dim)
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
            if (shape, dtype) != (tensor.shape, tensor.dtype):
                where = f"{part.entry_point}.{tensor.name}"
                raise ParityError(f"the shape or dtype of {where} differs", expected=(tensor.shape, tensor.dtype), got=(shape, dtype))


def _random_array(tensor: PartTensor, batch: int, generator: np.random.Generator) -> Array:
    """Return random values of a tensor's dtype and shape, spread over the range that it takes at work."""
    shape = [batch if isinstance(axis, str) else axis for axis in tensor.shape]
    return generator.uniform(tensor.minimum, tensor.maximum, shape).astype(tensor.dtype)


def _run_torch(module: torch.nn.Module, feeds: dict[str, Array]) -> list[Array]:
    """Return what the module computes."""
    with torch.no_grad():
        outputs = module(*(torch.from_numpy(array) for array in feeds.values()))
    return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


def _run_graph(session: Session, feeds: dict[str, Array], entry_point: str, batch: int) -> list[NDArray[np.float32]]:
    """Return what the graph computes."""
    try:
        return session.run(feeds)
    except Exception as error:  # ONNX Runtime raises classes of its own without a common root
        raise ParityError(f"the graph of {entry_point} fails at batch {batch}", got=str(error)[:300]) from error


def _compare(where: str, got: Array, expected: Array) -> float:
    """Return the largest absolute difference, or refuse one beyond the tolerances."""
    if got.shape != expected.shape:
        raise ParityError(f"{where} has another shape", expected=expected.shape, got=got.shape)
    difference = np.abs(got.astype(np.float64) - expected.astype(np.float64))
    allowed = ABSOLUTE_TOLERANCE + RELATIVE_TOLERANCE * np.abs(expected.astype(np.float64))
    worst = float(difference.max(initial=0.0))
    if not (difference <= allowed).all():  # NaN compares false
        tolerances = f"{ABSOLUTE_TOLERANCE:g} + {RELATIVE_TOLERANCE:g} x value"
        raise ParityError(f"{where} differs from torch", expected=f"at most {tolerances}", got=f"{worst:.3g}")
    return worst
