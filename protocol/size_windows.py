"""How large convolutions and pooled images can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from protocol.errors import UnsafeGraphError
from protocol.extents import Corners, Extent, Outline
from protocol.graph_order import NodeFacts

Read = Sequence[Outline | None]


def _walked(node: NodeFacts, size: Extent, kernel: Extent, axis: int, axes: int, corners: Corners) -> Extent:
    """Return the windows along one axis."""
    stride, dilation, pads = _geometry(node, axis, axes)
    reach = kernel.fixed
    if node.words.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or size.fixed is None or reach is None:
        return (size + corners.number(pads)).over(corners.number(stride)).bound() + corners.number(1)
    room = size.fixed + pads - dilation * (reach - 1) - 1
    ceil = node.attributes.get("ceil_mode", (0,))[0]
    return corners.number(max((-(-room // stride) if ceil else room // stride) + 1, 0))


def _spread(node: NodeFacts, size: Extent, kernel: Extent, axis: int, axes: int, corners: Corners) -> Extent:
    """Return the pixels along one axis of a transposed convolution."""
    stride, dilation, pads = _geometry(node, axis, axes)
    wanted = node.attributes.get("output_shape", ())
    added = node.attributes.get("output_padding", (0,) * axes)[axis]
    reach = kernel.fixed
    if wanted:
        return corners.number(wanted[-axes:][axis])
    if size.fixed is None or reach is None or node.words.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return size * corners.number(stride) + kernel * corners.number(dilation) + corners.number(added + 1)
    return corners.number((size.fixed - 1) * stride + dilation * (reach - 1) + 1 + added - pads)


def _geometry(node: NodeFacts, axis: int, axes: int) -> tuple[int, int, int]:
    """Return stride, dilation and all padding of one axis."""
    pads = node.attributes.get("pads", (0,) * (2 * axes))
    stride, dilation = node.attributes.get("strides", (1,) * axes)[axis], node.attributes.get("dilations", (1,) * axes)[axis]
    if stride < 1 or dilation < 1:
        raise UnsafeGraphError(f"{node.operator} has an impossible window", expected="strides and dilations from 1", got=(stride, dilation))
    return stride, dilation, pads[axis] + pads[axis + axes]


def _first(node: NodeFacts, read: Read, place: int) -> tuple[Extent, ...]:
    """Return the sizes of an input that must be there."""
    found = read[place] if place < len(read) else None
    if found is None or len(found.dims) < 3:
        raise UnsafeGraphError(f"{node.operator} reads no image", expected="batch, channels and at least one axis more")
    return found.dims


def convolved(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a convolution, plain or transposed."""
    image, kernel = _first(node, read, 0), _first(node, read, 1)
    axes, transposed = len(image) - 2, node.operator == "ConvTranspose"
    groups = corners.number(node.attributes.get("group", (1,))[0])
    channels = kernel[1] * groups if transposed else kernel[0]
    along = _spread if transposed else _walked
    return Outline((image[0], channels, *(along(node, image[2 + axis], kernel[2 + axis], axis, axes, corners) for axis in range(axes))))


def pooled(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return an image of windows."""
    image = _first(node, read, 0)
    axes = len(image) - 2
    if node.operator == "GlobalAveragePool":
        return Outline((*image[:2], *(corners.number(1) for _ in range(axes))))
    kernel = [corners.number(size) for size in node.attributes["kernel_shape"]]
    return Outline((*image[:2], *(_walked(node, image[2 + axis], kernel[axis], axis, axes, corners) for axis in range(axes))))


WINDOW_RULES: Mapping[str, Callable[[NodeFacts, Read, Corners], Outline]] = {
    "AveragePool": pooled,
    "Conv": convolved,
    "ConvTranspose": convolved,
    "GlobalAveragePool": pooled,
    "MaxPool": pooled,
}
