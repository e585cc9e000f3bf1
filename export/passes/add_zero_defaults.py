"""Let inputs be left out: each gets a default whose named axes have size 0, so that a LoRA factor of rank 0 adds nothing.

ONNX Runtime takes an input that is also an initialiser as optional; an adapter or an ordinary feed replaces it.

Requires: inputs of these names, each with at least one named axis, none with a default yet.
Ensures: exactly these inputs have defaults, all of them empty.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx

from export.passes.base import Condition, GraphPass


def add_zero_defaults(names: Collection[str]) -> GraphPass:
    """Return the pass for inputs of these names."""
    return GraphPass(
        "add_zero_defaults",
        lambda model: _append(model, names),
        requires=(
            Condition("no default yet", lambda model: not optional_inputs(model)),
            Condition("a named axis in each optional input", lambda model: _have_free_axes(model, names)),
        ),
        ensures=(
            Condition("defaults for exactly these inputs", lambda model: optional_inputs(model) == set(names)),
            Condition("empty defaults", lambda model: all(_is_empty(model, name) for name in names)),
        ),
    )


def optional_inputs(model: onnx.ModelProto) -> set[str]:
    """Return the inputs that have a default."""
    return {value.name for value in model.graph.input} & {tensor.name for tensor in model.graph.initializer}


def _append(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Append the defaults in place."""
    for value in model.graph.input:
        if value.name in names:
            kind = value.type.tensor_type
            shape = [0 if axis.dim_param else axis.dim_value for axis in kind.shape.dim]
            model.graph.initializer.append(onnx.TensorProto(name=value.name, dims=shape, data_type=kind.elem_type, raw_data=b""))


def _have_free_axes(model: onnx.ModelProto, names: Collection[str]) -> bool:
    """Tell whether all names are inputs with a named axis."""
    free = {value.name for value in model.graph.input if any(axis.dim_param for axis in value.type.tensor_type.shape.dim)}
    return set(names) <= free


def _is_empty(model: onnx.ModelProto, name: str) -> bool:
    """Tell whether a default has no entry."""
    return all(0 in tensor.dims for tensor in model.graph.initializer if tensor.name == name)
