"""The gate that no graph passes unless it computes what torch computes.

The exporter's own verification only logs, with a loose threshold; a graph can also fix its batch size without a word.
So the bytes that will be shipped are checked, loaded into ONNX Runtime, and compared at several batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from edge_runtime.sessions import Session, open_session
from export.divergence import first_divergence
from export.flat_module import FlatModule, flat_module, plain_torch
from export.graphs import BATCH, example_sizes, load_model
from protocol.errors import FedtailorError, ParityError
from protocol.manifest import OutputDifference, Parity
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
        ParityError: Not a valid model, an axis that should be free is fixed, or another result; the hint names the first
            layer at which the results part.
    """
    _check_model(part, graph)
    session, module = open_session(graph, minimum_runtime), flat_module(part)
    worst = {tensor.name: OutputDifference(tensor.name, BATCH_SIZES[0], 0.0) for tensor in part.outputs}
    agreements = []
    for batch, feeds in chain(_all_feeds(part), _feeds_without_optional(part)):
        try:
            expected, got = _run_torch(module, part, feeds), _run_graph(session, part, feeds, batch)
            for tensor, ours, theirs in zip(part.outputs, got, expected, strict=True):
                difference = _compare(f"{part.entry_point}.{tensor.name} at batch {batch}", ours, theirs)
                if difference > worst[tensor.name].absolute:
                    worst[tensor.name] = OutputDifference(tensor.name, batch, difference)
            if part.judged_by_label:
                agreements.append(_label_agreement(part.entry_point, got[0], expected[0]))
        except ParityError as error:
            raise ParityError(error.what, expected=error.expected, got=error.got, hint=_locate(part, graph, feeds)) from error
    largest = max(difference.absolute for difference in worst.values())
    agreement = float(np.mean(agreements)) if agreements else None
    return Parity(BATCH_SIZES, ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, largest, agreement, tuple(worst.values()))


def _locate(part: Part, graph: bytes, feeds: Mapping[str, Array]) -> str:
    """Return in words where the results part, or why that cannot be told."""
    try:
        found = first_divergence(part, graph, feeds, ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE)
    except FedtailorError as error:
        return f"the place could not be found: {error.what}"
    return found.sentence() if found else "no inner value of the graph differs under the name that torch gives it"


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
                what, expected = f"the shape or dtype of {part.entry_point}.{tensor.name} differs", (tensor.shape, tensor.dtype)
                raise ParityError(what, expected=expected, got=(shape, dtype), hint=_shape_hint(tensor, shape))


def _shape_hint(tensor: PartTensor, shape: tuple[int | str, ...]) -> str:
    """Return what to do about a shape that differs; most often the module's code fixed an axis that should be free."""
    fixed = [axis for axis, got in zip(tensor.shape, shape, strict=False) if isinstance(axis, str) and isinstance(got, int)]
    if not fixed:
        return "state in the part what the module takes and gives"
    return f"the module fixes the axis {fixed[0]}: use x.shape[0] or -1 instead of a number, and no loop over its entries"


def _all_feeds(part: Part) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield each batch size with random inputs; other named axes take the same sizes in another order."""
    generator = np.random.default_rng(SEED)
    others = [axis for axis in example_sizes(part) if axis != BATCH]
    for place, batch in enumerate(BATCH_SIZES):
        sizes = {axis: BATCH_SIZES[(place + shift) % len(BATCH_SIZES)] for shift, axis in enumerate(others, 1)}
        yield batch, {tensor.name: _random_array(tensor, {**sizes, BATCH: batch}, generator) for tensor in part.inputs}


def _feeds_without_optional(part: Part) -> Iterator[tuple[int, dict[str, Array]]]:
    """Yield inputs as the graph must take them without its optional ones: for torch these are empty."""
    own = {axis for tensor in part.inputs if tensor.optional for axis in tensor.shape if isinstance(axis, str)} - {BATCH}
    if own:
        generator = np.random.default_rng(SEED)
        for batch in BATCH_SIZES:
            sizes = {axis: 0 if axis in own else batch for axis in example_sizes(part)}
            yield batch, {tensor.name: _random_array(tensor, sizes, generator) for tensor in part.inputs}


def _random_array(tensor: PartTensor, sizes: Mapping[str, int], generator: np.random.Generator) -> Array:
    """Return random values of a tensor's dtype and shape, spread over the range that it takes at work."""
    shape = [sizes[axis] if isinstance(axis, str) else axis for axis in tensor.shape]
    return generator.uniform(tensor.minimum, tensor.maximum, shape).astype(tensor.dtype)


def _run_torch(module: FlatModule, part: Part, feeds: Mapping[str, Array]) -> list[Array]:
    """Return what the module computes."""
    with plain_torch():
        return [output.numpy() for output in module(*(torch.from_numpy(feeds[tensor.name]) for tensor in part.inputs))]


def _run_graph(session: Session, part: Part, feeds: Mapping[str, Array], batch: int) -> list[NDArray[np.float32]]:
    """Return what the graph computes; an empty optional input is left out, as a device leaves it out."""
    left_out = {tensor.name for tensor in part.inputs if tensor.optional and feeds[tensor.name].size == 0}
    try:
        return session.run({name: array for name, array in feeds.items() if name not in left_out})
    except FedtailorError as error:
        raise ParityError(f"the graph of {part.entry_point} fails at batch {batch}", got=error.got) from error


def _label_agreement(entry_point: str, got: Array, expected: Array) -> float:
    """Return 1.0, or refuse scores (B, C) that name other classes than torch's."""
    agreement = float(np.mean(got.argmax(axis=1) == expected.argmax(axis=1)))
    if agreement < 1.0:
        raise ParityError(f"labels of {entry_point} differ from torch", expected="the same labels", got=f"{agreement:.2%} equal")
    return agreement


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
