"""A torch module as single-file ONNX bytes: opset 18, IR 8, named axes, nothing of the developer's machine in it."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx
import onnx_ir
import torch
from torch import Tensor
from torch.onnx.errors import OnnxExporterError

from export.advice import cannot_export
from export.passes.drop_shape_hints import drop_shape_hints
from export.passes.expand_constants import expand_constants
from export.passes.lower_ir import lower_ir
from export.passes.strip_metadata import strip_metadata
from export.simplification import simplify
from protocol.errors import InputError
from trainer.methods.parts import Part, PartTensor

OPSET = 18
EXAMPLE_BATCH = 3  # 0 and 1 are treated as constants by the tracer
PASSES = (strip_metadata, drop_shape_hints, expand_constants, lower_ir)


def to_onnx(part: Part) -> bytes:
    """Return the graph of a part.

    The module itself is left as it is: a copy on the CPU in eval mode is traced.

    Args:
        part: Module with named inputs and outputs; a word in a shape becomes a free axis of that name.

    Raises:
        InputError: The module uses what cannot be translated.
        IncompatibleVersionError: The graph needs a newer format.
    """
    module = copy.deepcopy(part.module).cpu().eval()
    inputs = tuple(example_tensor(tensor, EXAMPLE_BATCH) for tensor in part.inputs)
    axes = {axis: torch.export.Dim(axis) for tensor in part.inputs for axis in tensor.shape if isinstance(axis, str)}
    shapes = [{place: axes[axis] for place, axis in enumerate(tensor.shape) if isinstance(axis, str)} for tensor in part.inputs]
    names = [tensor.name for tensor in part.inputs], [tensor.name for tensor in part.outputs]
    return convert(module, inputs, *names, _like_the_signature(module, shapes), f"the module for {part.entry_point}")


def convert(
    module: torch.nn.Module,
    inputs: tuple[Tensor, ...],
    input_names: Sequence[str],
    output_names: Sequence[str],
    shapes: tuple[object, ...],
    what: str,
) -> bytes:
    """Return a module as ONNX bytes, cleaned by the passes.

    Args:
        module: On the CPU, in eval mode.
        inputs: Examples, free axes at least 2 long.
        input_names: In order.
        output_names: In order.
        shapes: For each input its free axes, place -> ``torch.export.Dim``.
        what: What the module is, for error messages.

    Raises:
        InputError: The module uses what cannot be translated; says which operation, and what to use instead.
        IncompatibleVersionError: The graph needs a newer format.
    """
    try:
        with _quiet_exporter():
            program = torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                external_data=False,
                verbose=False,
                opset_version=OPSET,
                input_names=input_names,
                output_names=output_names,
                dynamic_shapes=shapes,
                optimize=False,  # it rounds small numbers away: export.simplification
            )
    except OnnxExporterError as error:
        raise cannot_export(what, error) from error
    if program is None:
        raise InputError(f"{what} cannot be exported", got="no program")
    model = onnx_ir.to_proto(simplify(program.model))
    for graph_pass in PASSES:
        graph_pass(model)
    return bytes(model.SerializeToString(deterministic=True))


def example_tensor(tensor: PartTensor, batch: int) -> Tensor:
    """Return zeros in a tensor's shape and dtype, free axes of size ``batch``."""
    shape = [batch if isinstance(axis, str) else axis for axis in tensor.shape]
    return torch.zeros(shape, dtype=getattr(torch, tensor.dtype))


def load_model(graph: bytes) -> onnx.ModelProto:
    """Return the model in ONNX bytes."""
    return onnx.load_model_from_string(graph)


def _like_the_signature(module: torch.nn.Module, shapes: Sequence[Mapping[int, object]]) -> tuple[object, ...]:
    """Return the free axes nested as the module's parameters are: what ``*weights`` takes becomes one tuple."""
    code = module.forward.__code__
    named = code.co_argcount - 1  # without self
    takes_rest = bool(code.co_flags & 0x04)
    return (*shapes[:named], tuple(shapes[named:])) if takes_rest else tuple(shapes)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep the exporter's remarks on packages that we do not use, and on its own deprecations, from the user."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", message="Exporting a model while it is in training mode")  # a traced step has no mode
            warnings.filterwarnings("ignore", message="# The axis name", category=UserWarning)  # several inputs share an axis
            yield
    finally:
        logger.setLevel(before)
