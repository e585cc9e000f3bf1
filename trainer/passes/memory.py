"""Whose memory a node of a traced graph reads: views share that of their source."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

aten = torch.ops.aten
SILENT_VIEWS = frozenset({aten._unsafe_view.default, aten._reshape_alias.default})  # noqa: SLF001  # operators' names; their schemas do not tell


def viewed(node: Node) -> Node | None:
    """Return the node whose memory an operator returns, wholly or in part; None if it makes memory of its own."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    source = node.args[0]
    if node.target is operator.getitem:  # one of several results
        return source if viewed(source) is not None else None
    schema = getattr(node.target, "_schema", None)
    shares = schema is None or node.target in SILENT_VIEWS or any(result.alias_info is not None for result in schema.returns)
    return source if shares else None


def memory_of(node: Node) -> Node:
    """Return the node that made the memory which a node reads."""
    source = viewed(node)
    return node if source is None else memory_of(source)


def readers_of(node: Node) -> set[Node]:
    """Return all nodes that read a node's memory, directly or through views."""
    found: set[Node] = set()
    for user in node.users:
        found.add(user)
        if viewed(user) is node:
            found |= readers_of(user)
    return found


def is_written(node: Node) -> bool:
    """Tell whether an operator writes into the memory that a node reads."""
    memory = memory_of(node)
    return any(_writes(reader) and memory_of(reader.args[0]) is memory for reader in readers_of(memory) if isinstance(reader.args[0], Node))


def _writes(node: Node) -> bool:
    """Tell whether an operator writes into its first argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
