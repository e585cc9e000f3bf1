"""For every allowed operator, how large its outputs can be, given its inputs: one rule each, none for what is not allowed."""

# ruff: noqa: ARG001  # all rules have one signature
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from protocol.errors import UnsafeGraphError
from protocol.extents import LARGEST_EXACT, Corners, Extent, Outline
from protocol.graph_order import NodeFacts
from protocol.size_windows import WINDOW_RULES

Read = Sequence[Outline | None]
Rule = Callable[[NodeFacts, Read, Corners], Outline]
MOST_VALUES = 64


def from_data(node: NodeFacts) -> UnsafeGraphError:
    """Return the refusal of a size that is no shape and no constant."""
    got = f"what {node.operator} reads"
    return UnsafeGraphError(f"{node.operator} takes its size from data", expected="sizes from shapes and constants", got=got)


def given(node: NodeFacts, read: Read, place: int) -> Outline:
    """Return an input that must be there."""
    found = read[place] if place < len(read) else None
    if found is None:
        raise UnsafeGraphError(f"{node.operator} lacks an input", expected=f"at least {place + 1}", got=len(read))
    return found


def numbers(node: NodeFacts, read: Read, place: int, attribute: str) -> tuple[int, ...] | None:
    """Return fixed integers of an input or an attribute, or None where there is neither."""
    if place < len(read) and read[place] is not None:
        values = given(node, read, place).values
        fixed = [None if values is None else value.fixed for value in values or ()]
        if values is None or None in fixed:
            raise from_data(node)
        return tuple(value for value in fixed if value is not None)
    return node.attributes.get(attribute)


def one(node: NodeFacts, attribute: str, default: int) -> int:
    """Return a single integer of an attribute."""
    return node.attributes.get(attribute, (default,))[0]


def same(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return the first input's size; entries are other ones."""
    return Outline(given(node, read, 0).dims)


def kept(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return the first input with its entries, as integers keep them."""
    first = given(node, read, 0)
    if node.operator == "Cast" and one(node, "to", 0) not in (6, 7):  # int32, int64
        return Outline(first.dims)
    if node.operator == "Cast" and first.values is not None:  # an integer too large for the new dtype becomes another
        return Outline(first.dims, tuple(value if max(map(abs, value.at)) < LARGEST_EXACT else value.bound() for value in first.values))
    if node.operator in ("Neg", "Abs"):
        return Outline(first.dims, None if first.values is None else tuple(value.bound() for value in first.values))
    return first


def broadcast_dims(dims: Sequence[tuple[Extent, ...]], corners: Corners) -> tuple[Extent, ...]:
    """Return sizes after broadcasting."""
    rank = max(map(len, dims), default=0)
    padded = [(corners.number(1),) * (rank - len(each)) + each for each in dims]
    return tuple(reduce(Extent.stretched, axis) for axis in zip(*padded, strict=True))


def broadcast(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return the size of all inputs together, and what integers become."""
    found = [each for each in read if each is not None]
    dims = broadcast_dims([each.dims for each in found], corners)
    combine = COMBINED.get(node.operator)
    entries = [each.values for each in (found[1:] if node.operator == "Where" else found)]
    known = [each for each in entries if each is not None]
    length = max((len(each) for each in known), default=0)
    if combine is None or not known or len(known) != len(entries) or len(dims) > 1 or any(len(each) not in (1, length) for each in known):
        return Outline(dims)
    if node.operator == "Where" and [axis.fixed for axis in dims] not in ([], [length]):
        return Outline(dims)
    rows = [each * (length // len(each)) for each in known]
    return Outline(dims, tuple(reduce(combine, column) for column in zip(*rows, strict=True)))


def concatenated(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return tensors behind each other."""
    found = [given(node, read, place) for place in range(len(read))]
    axis = one(node, "axis", 0) % max(len(found[0].dims), 1)
    dims = list(reduce(lambda left, right: tuple(map(Extent.largest, left, right)), [each.dims for each in found]))
    dims[axis] = reduce(Extent.__add__, [each.dims[axis] for each in found])
    values = [each.values for each in found]
    if len(dims) > 1 or any(each is None for each in values):
        return Outline(tuple(dims))
    joined = tuple(value for each in values for value in each or ())
    return Outline(tuple(dims), joined if len(joined) <= MOST_VALUES else None)


def expanded(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a tensor stretched to sizes."""
    sizes = given(node, read, 1).values
    if sizes is None:
        raise from_data(node)
    return Outline(broadcast_dims([given(node, read, 0).dims, sizes], corners))


def reshaped(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return the same entries in other sizes; -1 takes what is left."""
    first, sizes = given(node, read, 0), given(node, read, 1).values
    if sizes is None:
        raise from_data(node)
    total = math.prod(first.dims, start=corners.number(1))
    copied = [first.dims[place] if size.fixed == 0 and not one(node, "allowzero", 0) else size for place, size in enumerate(sizes)]
    others = [size for size in copied if size.fixed != -1]
    left = total.over(math.prod(others, start=corners.number(1)))
    dims = [left if size.fixed == -1 else size if size.exact else _whatever(size, place, first, total) for place, size in enumerate(copied)]
    values = first.values if len(dims) <= 1 else None
    return Outline(tuple(dims), values)


def _whatever(size: Extent, place: int, first: Outline, total: Extent) -> Extent:
    """Return a bound of a size that is only known not to exceed another: it may be 0 and copy an axis, or -1 and take what is left."""
    found = size.largest(total)
    return found.largest(first.dims[place]) if place < len(first.dims) else found


def transposed(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return axes in another order."""
    dims = given(node, read, 0).dims
    return Outline(tuple(dims[axis] for axis in node.attributes.get("perm", tuple(reversed(range(len(dims)))))))


def flattened(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return two axes."""
    dims, start = given(node, read, 0).dims, corners.number(1)
    axis = one(node, "axis", 1)
    axis = axis + len(dims) if axis < 0 else axis
    return Outline((math.prod(dims[:axis], start=start), math.prod(dims[axis:], start=start)))


def squeezed(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a tensor without some axes; which ones must be said."""
    first, axes = given(node, read, 0), numbers(node, read, 1, "axes")
    if axes is None:
        if any(size.fixed is None for size in first.dims):
            raise from_data(node)
        axes = tuple(place for place, size in enumerate(first.dims) if size.fixed == 1)
    gone = {axis % len(first.dims) for axis in axes}
    return Outline(tuple(size for place, size in enumerate(first.dims) if place not in gone), first.values)


def unsqueezed(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a tensor with further axes of 1."""
    first, axes = given(node, read, 0), numbers(node, read, 1, "axes") or ()
    rank = len(first.dims) + len(axes)
    added, rest = {axis % rank for axis in axes}, iter(first.dims)
    dims = tuple(corners.number(1) if place in added else next(rest) for place in range(rank))
    return Outline(dims, first.values if rank <= 1 else None)


def gathered(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return entries along an axis, as many as there are indices."""
    first, second = given(node, read, 0), given(node, read, 1)
    axis = one(node, "axis", 0) % len(first.dims)
    dims = first.dims[:axis] + second.dims + first.dims[axis + 1 :]
    if first.values is None or len(dims) > 1 or second.values is None:
        return Outline(dims)
    places = [place.fixed for place in second.values]
    anything = reduce(Extent.largest, first.values).bound()
    return Outline(dims, tuple(anything if place is None else first.values[place] for place in places))


def gathered_elements(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return one entry for each index."""
    return Outline(given(node, read, 1).dims)


def sliced(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a part of a tensor."""
    first = given(node, read, 0)
    try:
        starts, ends = numbers(node, read, 1, "starts") or (), numbers(node, read, 2, "ends") or ()
        axes = numbers(node, read, 3, "axes") or tuple(range(len(starts)))
        steps = numbers(node, read, 4, "steps") or (1,) * len(starts)
    except UnsafeGraphError:  # a part of unknown length is no longer than the whole
        return Outline(tuple(size.bound() for size in first.dims))
    dims = list(first.dims)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        dims[axis] = _part(dims[axis], start, end, step, corners)
    values = first.values
    if values is not None and len(first.dims) == 1 and len(starts) == 1:
        values = values[slice(*_bounds(len(values), starts[0], ends[0], steps[0]))]
    return Outline(tuple(dims), values)


def _bounds(length: int, start: int, end: int, step: int) -> tuple[int, int | None, int]:
    """Return ends of a slice as Python takes them: one that begins before the first entry and goes down still has that one in ONNX."""
    if step > 0:
        return start, end, step
    return max(start, -length), None if end < -length else end, step


def _part(size: Extent, start: int, end: int, step: int, corners: Corners) -> Extent:
    """Return the length of a slice of an axis."""
    if size.fixed is not None:
        return corners.number(len(range(size.fixed)[slice(*_bounds(size.fixed, start, end, step))]))
    if step == 1 and start == 0 and end >= 2**31 - 1:
        return size
    if step >= 1 and 0 <= start <= end and -(-(end - start) // step) <= min(size.at):
        return corners.number(-(-(end - start) // step)).bound()
    return size.bound()


def split(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a bound of every part."""
    first, axis = given(node, read, 0), one(node, "axis", 0) % len(given(node, read, 0).dims)
    sizes = numbers(node, read, 1, "split")
    if sizes is not None and len(set(sizes)) == 1:
        part = corners.number(sizes[0])
    elif sizes is None and len(node.outputs) and first.dims[axis].fixed is not None:
        part = corners.number(-(-int(first.dims[axis].at[0]) // len(node.outputs))).bound()
        part = Extent(part.at, first.dims[axis].at[0] % len(node.outputs) == 0)
    else:
        part = first.dims[axis].bound()
    return Outline((*first.dims[:axis], part, *first.dims[axis + 1 :]))


def padded(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a tensor with a rim."""
    first = given(node, read, 0)
    pads = numbers(node, read, 1, "pads") or ()
    axes = numbers(node, read, 3, "axes") or tuple(range(len(first.dims)))
    dims = list(first.dims)
    for place, axis in enumerate(axes):
        before, behind = pads[place], pads[place + len(axes)]
        size, added = dims[axis].fixed, corners.number(abs(before) + abs(behind))
        if size is not None and min(before, behind) >= -size and size + before + behind >= 0:
            dims[axis] = corners.number(size + before + behind)
        elif before or behind:
            dims[axis] = (dims[axis] + added).bound()
    return Outline(tuple(dims))


def reduced(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a tensor without, or with 1 in place of, the axes that are summed up."""
    dims = given(node, read, 0).dims
    axes = (one(node, "axis", 0),) if node.operator == "ArgMax" else numbers(node, read, 1, "axes")
    if not axes and one(node, "noop_with_empty_axes", 0):
        return Outline(dims)
    gone = {axis % len(dims) for axis in axes} if axes else set(range(len(dims)))
    if one(node, "keepdims", 1):
        return Outline(tuple(corners.number(1) if place in gone else size for place, size in enumerate(dims)))
    return Outline(tuple(size for place, size in enumerate(dims) if place not in gone))


def multiplied(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a matrix product."""
    left, right = given(node, read, 0).dims, given(node, read, 1).dims
    if node.operator == "Gemm":
        rows, columns = left[1 if one(node, "transA", 0) else 0], right[0 if one(node, "transB", 0) else 1]
        return Outline((rows, columns))
    leading = broadcast_dims([left[:-2], right[:-2]], corners)
    return Outline((*leading, *left[-2:-1], *(right[-1:] if len(right) > 1 else ())))


def contracted(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return the sizes that an equation names."""
    terms, arrow, result = node.words.get("equation", "").replace(" ", "").partition("->")
    letters = terms.split(",")
    if not arrow or "." in terms + result or len(letters) != len(read):
        raise UnsafeGraphError("an Einsum cannot be followed", expected="letters and an arrow", got=repr((terms + arrow + result)[:60]))
    sizes: dict[str, Extent] = {}
    for place, term in enumerate(letters):
        for letter, size in zip(term, given(node, read, place).dims, strict=True):
            sizes[letter] = sizes[letter].stretched(size) if letter in sizes else size
    return Outline(tuple(sizes[letter] for letter in result))


def shape_of(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return sizes as entries."""
    dims = given(node, read, 0).dims
    dims = dims[slice(one(node, "start", 0), node.attributes.get("end", (len(dims),))[0])]
    return Outline((corners.number(len(dims)),), dims)


def constant(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return a constant."""
    return corners.outline(node.constant_shape, node.constant)


def chosen(node: NodeFacts, read: Read, corners: Corners) -> Outline:
    """Return the largest entries of an axis: no more than there are."""
    dims, axis = given(node, read, 0).dims, one(node, "axis", -1)
    return Outline(tuple(size.bound() if place == axis % len(dims) else size for place, size in enumerate(dims)))


COMBINED: Mapping[str, Callable[[Extent, Extent], Extent]] = {
    "Add": Extent.__add__,
    "Sub": lambda left, right: left.bound() + right.bound(),
    "Mul": Extent.__mul__,
    "Div": Extent.over,
    "Max": Extent.largest,
    "Min": Extent.largest,
    "Where": Extent.largest,
}


def _all(names: str, rule: Rule) -> dict[str, Rule]:
    """Return one rule for several operators."""
    return dict.fromkeys(names.split(), rule)


RULES: Mapping[str, Rule] = {
    **_all("Abs Cast Identity Neg", kept),
    **_all("BatchNormalization CastLike Clip Cos DequantizeLinear DynamicQuantizeLinear Elu Erf Exp Floor HardSigmoid HardSwish", same),
    **_all("InstanceNormalization IsNaN LayerNormalization LeakyRelu Log LogSoftmax Mish Not QuantizeLinear Reciprocal Relu", same),
    **_all("ScatterElements ScatterND Sigmoid Sign Sin Softmax Softplus Sqrt Tanh", same),
    **_all("Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mul Or PRelu Pow Sub Sum Where Xor", broadcast),
    **_all("ArgMax ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum ReduceSumSquare", reduced),
    **_all("Gemm MatMul MatMulInteger", multiplied),
    **WINDOW_RULES,
    "Concat": concatenated,
    "Constant": constant,
    "Einsum": contracted,
    "Expand": expanded,
    "Flatten": flattened,
    "Gather": gathered,
    "GatherElements": gathered_elements,
    "Pad": padded,
    "Reshape": reshaped,
    "Shape": shape_of,
    "Slice": sliced,
    "Split": split,
    "Squeeze": squeezed,
    "TopK": chosen,
    "Transpose": transposed,
    "Unsqueeze": unsqueezed,
}
