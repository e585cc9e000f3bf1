"""A torch module or a pure function as single-file ONNX bytes: opset 18, IR 8, named axes, nothing of the developer's machine.

The same module gives the same bytes, in this process and in any other.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx
import onnx_ir
import torch
from torch import Tensor
from torch.onnx import ONNXProgram
from torch.onnx.errors import OnnxExporterError

from export.failures import export_failure
from export.flat_module import FlatModule, flat_module, plain_torch
from export.passes.add_zero_defaults import add_zero_defaults
from export.passes.drop_shape_hints import drop_shape_hints
from export.passes.drop_unused_opsets import drop_unused_opsets
from export.passes.expand_constants import expand_constants
from export.passes.lower_ir import lower_ir
from export.passes.name_tensors import name_tensors
from export.passes.strip_metadata import strip_metadata
from export.simplification import simplify
from protocol.errors import InputError
from trainer.methods.parts import Part, PartTensor

OPSET = 18
BATCH = "batch"
EXAMPLE_SIZE = 3  # 0 and 1 are treated as constants by the tracer; each further axis gets a larger size of its own
NOISY_LOGGERS = ("torch.onnx._internal.exporter._registration", "torch.fx.experimental.symbolic_shapes", "torch.export")


def to_onnx(part: Part) -> bytes:
    """Return the graph of a part.

    The module itself is left as it is: a copy on the CPU in eval mode is traced.

    Args:
        part: Module or pure function with named inputs and outputs; a word in a shape becomes a free axis of that name.

    Raises:
        InputError: It uses what cannot be translated; the message names the operation and what to use instead.
        IncompatibleVersionError: The graph needs a newer format.
    """
    _check_names(part)
    names = [tensor.name for tensor in part.inputs], [tensor.name for tensor in part.outputs]
    optional = [tensor.name for tensor in part.inputs if tensor.optional]
    with plain_torch():
        module, inputs, shapes = traceable(part)
        return convert(module, inputs, *names, shapes, f"the module for {part.entry_point}", optional)


def convert(  # noqa: PLR0913, PLR0917  # what a graph is made of
    module: torch.nn.Module,
    inputs: tuple[Tensor, ...],
    input_names: Sequence[str],
    output_names: Sequence[str],
    shapes: tuple[object, ...],
    what: str,
    optional: Sequence[str] = (),
) -> bytes:
    """Return a module as ONNX bytes, cleaned by the passes.

    Args:
        module: On the CPU, in eval mode.
        inputs: Examples, free axes at least 2 long.
        input_names: In order.
        output_names: In order.
        shapes: For each input its free axes, place -> ``torch.export.Dim``, nested as the module's parameters are.
        what: What the module is, for error messages.
        optional: Inputs that may be left out, and then are empty.

    Raises:
        InputError: The module uses what cannot be translated; says which operation, and what to use instead.
        IncompatibleVersionError: The graph needs a newer format.
    """
    model = onnx_ir.to_proto(simplify(trace_onnx(module, inputs, shapes, what).model))
    names, defaults = name_tensors(input_names, output_names), add_zero_defaults(optional)
    for graph_pass in (strip_metadata, drop_shape_hints, names, defaults, expand_constants, lower_ir):
        graph_pass(model)
    return serialised(model)


def clean(model: onnx.ModelProto) -> bytes:
    """Return a model that another tool has changed as ONNX bytes, without traces of that tool."""
    for graph_pass in (strip_metadata, drop_shape_hints, drop_unused_opsets, lower_ir):
        graph_pass(model)
    return serialised(model)


def serialised(model: onnx.ModelProto) -> bytes:
    """Return a model's bytes, the same for the same content."""
    return bytes(model.SerializeToString(deterministic=True))


def traceable(part: Part) -> tuple[FlatModule, tuple[Tensor, ...], tuple[object, ...]]:
    """Return a part's computation, example inputs and the free axes of each; call it inside ``plain_torch``.

    Raises:
        InputError: The computation cannot be copied, or fails on the examples.
    """
    if not part.inputs:
        raise InputError(f"the module for {part.entry_point} takes no input", expected="at least one input")
    module, sizes = flat_module(part), example_sizes(part)
    inputs = tuple(example_tensor(tensor, sizes) for tensor in part.inputs)
    _check_call(part, module, inputs)
    axes = {axis: torch.export.Dim(axis) for axis in sizes}
    shapes = tuple({place: axes[axis] for place, axis in enumerate(tensor.shape) if isinstance(axis, str)} for tensor in part.inputs)
    return module, inputs, (shapes,)


def trace_onnx(module: torch.nn.Module, inputs: tuple[Tensor, ...], shapes: tuple[object, ...], what: str) -> ONNXProgram:
    """Return what torch's exporter makes of a module, before any pass; see ``convert``."""
    try:
        with _quiet_exporter():
            program = torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                external_data=False,
                verbose=False,
                opset_version=OPSET,
                dynamic_shapes=shapes,
                optimize=False,  # it rounds small numbers away: export.simplification
            )
    except OnnxExporterError as error:
        raise export_failure(what, error) from error
    if program is None:
        raise InputError(f"{what} cannot be exported", got="no program")
    return program


def example_sizes(part: Part) -> dict[str, int]:
    """Return a size for each named axis of the inputs, all different: equal ones would be taken for one axis."""
    names = dict.fromkeys(axis for tensor in part.inputs for axis in tensor.shape if isinstance(axis, str))
    return {name: EXAMPLE_SIZE + place for place, name in enumerate(names)}


def example_tensor(tensor: PartTensor, sizes: Mapping[str, int]) -> Tensor:
    """Return zeros in a tensor's shape and dtype, named axes of these sizes."""
    shape = [sizes[axis] if isinstance(axis, str) else axis for axis in tensor.shape]
    return torch.zeros(shape, dtype=getattr(torch, tensor.dtype))


def load_model(graph: bytes) -> onnx.ModelProto:
    """Return the model in ONNX bytes."""
    return onnx.load_model_from_string(graph)


def _check_names(part: Part) -> None:
    """Refuse names that no graph can hold, and an optional input without a named axis that could be empty."""
    names = [tensor.name for tensor in (*part.inputs, *part.outputs)]
    if len(set(names)) != len(names) or not all(names):
        raise InputError(f"names of {part.entry_point} are wrong", expected="a different name for each input and output", got=names)
    for tensor in part.inputs:
        own = [axis for axis in tensor.shape if isinstance(axis, str) and axis != BATCH]
        if tensor.optional and not own:
            where = f"{part.entry_point}.{tensor.name}"
            raise InputError(f"{where} cannot be optional", expected="a named axis of its own, such as rank", got=tensor.shape)


def _check_call(part: Part, module: FlatModule, inputs: tuple[Tensor, ...]) -> None:
    """Call the copy once, so that a plain mistake is reported as itself and not from inside the tracer."""
    try:
        outputs = module(*inputs)
    except Exception as error:  # a user's module may raise anything
        got = f"{type(error).__name__}: {error}"[:300]
        shapes = [tuple(tensor.shape) for tensor in inputs]
        raise InputError(f"the module for {part.entry_point} fails on inputs {shapes}", got=got) from error
    if len(outputs) != len(part.outputs) or not all(isinstance(output, Tensor) for output in outputs):
        kinds = [type(output).__name__ for output in outputs]
        raise InputError(f"the module for {part.entry_point} returns something else", expected=f"{len(part.outputs)} tensors", got=kinds)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Keep the exporter's remarks on packages that we do not use, and on its own deprecations, from the user."""
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", message="Exporting a model while it is in training mode")  # a traced step has no mode
            warnings.filterwarnings("ignore", message="# The axis name", category=UserWarning)  # several inputs share an axis
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
