"""Every name in a graph is made once and used only after that: no cycle, nothing from nowhere, nothing with two meanings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from protocol.errors import UnsafeGraphError


@dataclass(frozen=True)
class NodeFacts:
    """A node.

    Attributes:
        operator: Name of the operator.
        inputs: Names that it reads; an empty one stands for an input left out.
        outputs: Names that it makes; an empty one for an output left out.
        constant: Values of a Constant node of few integers, else None.
        constant_shape: Sizes of a Constant node's tensor.
        attributes: Integers by name.
        words: Texts by name.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constant: tuple[int, ...] | None = None
    constant_shape: tuple[int, ...] = ()
    attributes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)


def check_order(nodes: Iterable[NodeFacts], inputs: Sequence[str], initialisers: Sequence[str], outputs: Sequence[str]) -> None:
    """Refuse a graph whose names do not say which value is meant.

    Args:
        nodes: In the order of the file.
        inputs: Names of the graph's inputs.
        initialisers: Names of its constants; one of the same name as an input is that input's default.
        outputs: Names of its outputs.

    Raises:
        UnsafeGraphError: A name twice, or one that is used before it is made.
    """
    for kind, names in (("input", inputs), ("constant", initialisers), ("output", outputs)):
        repeated = [name for name in set(names) if not name or names.count(name) > 1] if len(names) != len({*names} - {""}) else []
        if repeated:
            raise UnsafeGraphError(f"a graph has one {kind} twice, or one without a name", got=repr(repeated[0]))
    known = {*inputs, *initialisers}
    for node in nodes:
        for name in filter(None, node.inputs):
            if name not in known:
                raise UnsafeGraphError("a node reads what no node before it made", got=f"{node.operator} reads {name!r}")
        for name in filter(None, node.outputs):
            if name in known:
                raise UnsafeGraphError("a name is made twice in a graph", got=f"{node.operator} makes {name!r}")
            known.add(name)
    absent = [name for name in outputs if name not in known]
    if absent:
        raise UnsafeGraphError("an output is made by no node", got=repr(absent[0]))
