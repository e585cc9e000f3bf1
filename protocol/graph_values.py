"""What a graph in an ONNX file says its inputs and outputs are, held against the manifest."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import UnsafeGraphError
from protocol.manifest import TensorSpec
from protocol.onnx_tensor import DTYPES
from protocol.protobuf import fields, integer, message, text

# ValueInfoProto, TypeProto, TypeProto.Tensor, TensorShapeProto, TensorShapeProto.Dimension
VALUE_NAME, VALUE_TYPE, TYPE_TENSOR, TYPE_DENOTATION, TENSOR_DTYPE, TENSOR_SHAPE, SHAPE_AXIS, AXIS_SIZE = 1, 2, 1, 6, 1, 2, 1, 1


@dataclass(frozen=True)
class ValueFacts:
    """An input or output: its name, its dtype, and its sizes, None for a free one; no sizes at all where the file states none."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


def read_value(data: memoryview) -> ValueFacts:
    """Return what a graph says of an input or output.

    Raises:
        UnsafeGraphError: It is no tensor of numbers, or two readers could take it for different things.
    """
    names = [text(value) for number, value in fields(data) if number == VALUE_NAME]
    kinds = [message(value) for number, value in fields(data) if number == VALUE_TYPE]
    name = names[0] if names else ""
    inner = [(number, value) for kind in kinds for number, value in fields(kind) if number != TYPE_DENOTATION]
    if len(names) != 1 or not name or [number for number, _ in inner] != [TYPE_TENSOR]:
        raise UnsafeGraphError(f"the value {name!r} is no tensor", expected="one name and one plain tensor type")
    dtype, shapes = 0, []
    for number, value in fields(message(inner[0][1])):
        if number == TENSOR_DTYPE:
            dtype = integer(value)
        elif number == TENSOR_SHAPE:
            shapes.append(message(value))
    if dtype not in DTYPES or len(shapes) > 1:
        raise UnsafeGraphError(
            f"the value {name!r} is of no accepted dtype", expected=", ".join(DTYPES.values()), got=f"type number {dtype}"
        )
    return ValueFacts(name, DTYPES[dtype], _sizes(shapes[0]) if shapes else None)


def _sizes(shape: memoryview) -> tuple[int | None, ...]:
    """Return the sizes of a shape, None for an axis without a number."""
    axes = [message(value) for number, value in fields(shape) if number == SHAPE_AXIS]
    sizes = [[integer(value) for number, value in fields(axis) if number == AXIS_SIZE] for axis in axes]
    return tuple(each[-1] if each else None for each in sizes)


def compare_value(file: str, value: ValueFacts, spec: TensorSpec) -> None:
    """Refuse an input or output that is another than the manifest states.

    Raises:
        UnsafeGraphError: Another dtype, another number of axes, another size, or a fixed size where the manifest has a free one.
    """
    if value.dtype != spec.dtype:
        raise UnsafeGraphError(f"{file}: the dtype of {spec.name} differs from the manifest", expected=spec.dtype, got=value.dtype)
    if value.shape is None:
        return
    stated = tuple(None if isinstance(size, str) else size for size in spec.shape)
    # A free axis in the graph takes the manifest's size too; the other way round a device would be refused samples.
    fits = len(stated) == len(value.shape) and all(own in (None, size) for own, size in zip(value.shape, stated, strict=True))
    if not fits:
        raise UnsafeGraphError(f"{file}: the shape of {spec.name} differs from the manifest", expected=stated, got=value.shape)
