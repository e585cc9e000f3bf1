"""How large a tensor a few bytes of a graph can ask for.

Every tensor is bounded from its operator's inputs, by a rule for each operator (``size_rules``): broadcasting, outer products, gathering
and sizes that the graph computes are all followed. A device chooses how many rows it feeds, so bounds are held with every free axis at
one row and at many; what holds at both holds between them. Work space inside an operator is not counted: a self-test runs with a limit
on memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from protocol.errors import UnsafeGraphError
from protocol.extents import MOST_ROWS, Corners, Outline
from protocol.graph_order import NodeFacts
from protocol.size_rules import RULES

MOST_ELEMENTS = 2**26  # of one tensor, where every free axis is one row
MOST_ELEMENTS_OF_ROWS = 2**30  # where they are ``MOST_ROWS``

Shape = Sequence[int | str]


def check_sizes(
    nodes: Iterable[NodeFacts],
    inputs: Mapping[str, Shape],
    constants: Mapping[str, Sequence[int]],
    constant_shapes: Mapping[str, Sequence[int]],
) -> dict[str, Outline]:
    """Return a bound of every tensor of a graph, and refuse one in which any can be huge, whatever it is made from.

    Args:
        nodes: In the order of the file, names checked.
        inputs: Name of an input -> its sizes, names for free axes; one with a default counts as what may be fed.
        constants: Name of a short integer constant -> its values.
        constant_shapes: Name of any constant -> its sizes.

    Raises:
        UnsafeGraphError: A size beyond the limit, or one that comes from data or cannot be followed.
    """
    corners = Corners.of(inputs.values())
    outlines = {name: corners.outline(sizes, constants.get(name)) for name, sizes in constant_shapes.items()}
    outlines |= {name: corners.outline(shape) for name, shape in inputs.items()}
    for node in nodes:
        made = bounded(node, outlines, corners)
        for place, name in enumerate(filter(None, node.outputs)):
            outlines[name] = made if place == 0 else Outline(made.dims)
    return outlines


def bounded(node: NodeFacts, outlines: Mapping[str, Outline], corners: Corners) -> Outline:
    """Return what a node makes at most.

    Raises:
        UnsafeGraphError: It is too large, or cannot be followed.
    """
    read = [outlines.get(name) if name else None for name in node.inputs]
    try:
        made = RULES[node.operator](node, read, corners)
    except (ArithmeticError, LookupError, TypeError, ValueError) as fault:
        raise UnsafeGraphError(f"the sizes of {node.operator} cannot be followed", expected="what its definition takes") from fault
    largest = math.prod(made.dims, start=corners.number(1)).bound().at
    for number, limit in ((largest[0], MOST_ELEMENTS), (max(largest), MOST_ELEMENTS_OF_ROWS)):
        if number > limit:
            rows = 1 if limit == MOST_ELEMENTS else MOST_ROWS
            raise UnsafeGraphError(f"{node.operator} asks for too much", expected=f"at most {limit} at {rows} rows", got=number)
    return made
