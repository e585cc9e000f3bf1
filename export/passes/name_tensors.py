"""Give inputs and outputs the names that the manifest states.

The exporter is not given them: an input named like an operation (``t``) would get a value's name twice.

Requires: as many inputs and outputs as names; no name twice.
Ensures: inputs and outputs have these names in this order; every value has one maker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import onnx

from export.passes.base import Condition, GraphPass

IDENTITY = "Identity"


def name_tensors(inputs: Sequence[str], outputs: Sequence[str]) -> GraphPass:
    """Return the pass for these names, in the graph's order."""
    return GraphPass(
        "name_tensors",
        lambda model: _rename(model, inputs, outputs),
        requires=(
            Condition(f"{len(inputs)} inputs and {len(outputs)} outputs", lambda model: _sizes(model) == (len(inputs), len(outputs))),
            Condition("names that all differ", lambda _: len({*inputs, *outputs}) == len(inputs) + len(outputs)),
        ),
        ensures=(
            Condition("the names of the manifest", lambda model: _names(model) == (list(inputs), list(outputs))),
            Condition("one maker for each value", has_single_makers),
        ),
    )


def has_single_makers(model: onnx.ModelProto) -> bool:
    """Tell whether no two of inputs, initialisers that are no inputs, and node outputs share a name."""
    graph = model.graph
    inputs = [value.name for value in graph.input]
    constants = [tensor.name for tensor in graph.initializer if tensor.name not in set(inputs)]
    made = [name for node in graph.node for name in node.output if name]
    return max(Counter([*inputs, *constants, *made]).values(), default=1) == 1


def _sizes(model: onnx.ModelProto) -> tuple[int, int]:
    """Return the numbers of inputs and outputs."""
    return len(model.graph.input), len(model.graph.output)


def _names(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """Return the names of inputs and outputs."""
    return [value.name for value in model.graph.input], [value.name for value in model.graph.output]


def _rename(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Rename in place; an inner value that has one of the names already makes room."""
    graph = model.graph
    _separate_outputs(graph)
    renamed = dict(zip([*(value.name for value in graph.input), *(value.name for value in graph.output)], [*inputs, *outputs], strict=True))
    wanted = set(renamed.values())
    inner = [tensor.name for tensor in graph.initializer] + [name for node in graph.node for name in node.output]
    taken = {*inner, *wanted}
    for name in inner:
        if name in wanted and name not in renamed:
            renamed[name] = _free_name(name, taken)
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = renamed.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]


def _separate_outputs(graph: onnx.GraphProto) -> None:
    """Give an output that is an input, an initialiser or another output a value of its own."""
    seen = {value.name for value in (*graph.input, *graph.initializer)}
    for place, value in enumerate(graph.output):
        if value.name in seen:
            source, value.name = value.name, f"output_of_{IDENTITY}_{place}"
            graph.node.append(onnx.helper.make_node(IDENTITY, [source], [value.name], name=f"node_{value.name}"))
        seen.add(value.name)


def _free_name(name: str, taken: set[str]) -> str:
    """Return a name that nothing has yet, and take it."""
    number = 1
    while f"{name}.{number}" in taken:
        number += 1
    taken.add(f"{name}.{number}")
    return f"{name}.{number}"
