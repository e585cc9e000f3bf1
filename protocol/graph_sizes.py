"""How large a tensor a few bytes of a graph can ask for.

Expand and Pad make tensors of a size that another tensor says. That size is followed back through the few operators that exported
graphs compute sizes with, and the product of all its entries is bounded from above: constants count as they are, what is read
from the shape of a device's own samples counts as 1, since the device chose it. Bombs by broadcasting, gathering or outer
products are not found here; they cost an attacker bytes in proportion, and a self-test runs with a limit on memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from protocol.errors import UnsafeGraphError
from protocol.graph_order import NodeFacts

SIZED_BY = {"Expand": 2**26, "Pad": 2**16}  # elements; for Pad the product of all that is added
MOST_AXES = 8  # of a tensor whose shape is read
CEILING = 2**256  # bounds grow no further: numbers of a million digits would be a bomb of their own
SAME = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Slice", "Gather", "Reshape", "Neg", "Abs", "Div", "Flatten")
COMBINED = ("Mul", "Max", "Min", "Concat", "Where")
SUMMED = ("Add", "Sub")


@dataclass(frozen=True)
class Bound:
    """Of a tensor of sizes: at most so many entries, whose product (each at least 1) is at most ``product``."""

    entries: int
    product: int

    def spread(self, entries: int) -> Bound:
        """Return the bound after broadcasting to more entries."""
        times = -(-entries // max(self.entries, 1))
        return Bound(entries, min(self.product**times if self.product < CEILING else CEILING, CEILING))


def constant_bound(values: Sequence[int]) -> Bound:
    """Return the bound of a constant."""
    return Bound(max(len(values), 1), min(math.prod(max(abs(value), 1) for value in values), CEILING))


def check_sizes(nodes: Iterable[NodeFacts], constants: Mapping[str, Sequence[int]], constant_shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse a graph in which a constant, or arithmetic on constants, asks for a huge tensor.

    Args:
        nodes: In the order of the file, names checked.
        constants: Name of a short integer constant -> its values.
        constant_shapes: Name of any constant -> its sizes.

    Raises:
        UnsafeGraphError: A size beyond the limit, or one that comes from data or from an operator that sizes need not.
    """
    bounds = {name: constant_bound(values) for name, values in constants.items()}
    makers: dict[str, str] = {}
    for node in nodes:
        if node.operator in SIZED_BY and len(node.inputs) > 1:
            _check(node, bounds.get(node.inputs[1]), makers.get(node.inputs[1], "an input or a long constant"))
        bound = _follow(node, bounds, constant_shapes)
        for name in node.outputs:
            makers[name] = node.operator
            if bound is not None:
                bounds[name] = bound


def _check(node: NodeFacts, bound: Bound | None, maker: str) -> None:
    """Refuse one node's size."""
    if bound is None:
        expected = "sizes from shapes and constants"
        raise UnsafeGraphError(f"{node.operator} takes its size from data", expected=expected, got=f"what comes from {maker}")
    if bound.product > SIZED_BY[node.operator]:
        raise UnsafeGraphError(f"{node.operator} asks for too much", expected=f"at most {SIZED_BY[node.operator]}", got=bound.product)


def _follow(node: NodeFacts, bounds: Mapping[str, Bound], constant_shapes: Mapping[str, Sequence[int]]) -> Bound | None:
    """Return the bound of what a node makes, or None where it is no size."""
    if node.operator == "Constant":
        return None if node.constant is None else constant_bound(node.constant)
    if node.operator == "Shape":
        sizes = constant_shapes.get(node.inputs[0] if node.inputs else "")
        return Bound(MOST_AXES, 1) if sizes is None else constant_bound(sizes)
    read = [bounds.get(name) for name in filter(None, node.inputs)]
    if node.operator in SAME:
        return _gathered(node, read)
    if node.operator == "Where":
        read = read[1:]  # the condition chooses, it is no size
    found = [each for each in read if each is not None]
    if not found or len(found) != len(read) or node.operator not in (*COMBINED, *SUMMED):
        return None
    if node.operator == "Concat":
        return Bound(sum(each.entries for each in found), min(math.prod(each.product for each in found), CEILING))
    entries = max(each.entries for each in found)
    product = math.prod(each.spread(entries).product for each in found)
    # |a + b| is at most 2 max(1, |a|) max(1, |b|).
    return Bound(entries, min(product * 2**entries if node.operator in SUMMED else product, CEILING))


def _gathered(node: NodeFacts, read: Sequence[Bound | None]) -> Bound | None:
    """Return the bound of entries that are taken from one tensor; gathering may take one of them often."""
    first = read[0] if read else None
    if first is None or node.operator != "Gather":
        return first
    second = read[1] if len(read) > 1 else None
    if second is None:
        return None
    return Bound(second.entries, min(first.product**second.entries if second.entries <= MOST_AXES else CEILING, CEILING))
