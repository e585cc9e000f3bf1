"""The project's own source files and what they import, read with ast and without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "edge_runtime", "trainer", "export")
"""The import packages, lowest first: each may import itself and those before it."""


@dataclass(frozen=True)
class Import:
    """One imported module or name.

    Attributes:
        target: Dotted name; for ``from a import b`` it is ``a.b``, whether ``b`` is a module or not.
        line: Line number in the file.
        lazy: Whether it stands inside a function and so does not run when the file is imported.
    """

    target: str
    line: int
    lazy: bool


@cache
def modules() -> dict[str, Path]:
    """Return every module of the distribution by its dotted name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    paths += [path for path in [ROOT / "fedtailor.py"] if path.exists()]
    return {_dotted_name(path): path for path in paths}


def _dotted_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the parsed file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports_of(path: Path) -> list[Import]:
    """Return what a file imports, except under ``if TYPE_CHECKING``."""
    return list(_imports(tree_of(path), lazy=False))


def _imports(node: ast.AST, *, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            prefix = "." * child.level + (child.module or "")
            yield from (Import(f"{prefix}.{alias.name}", child.lineno, lazy) for alias in child.names)
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            for branch in child.orelse:
                yield from _imports(branch, lazy=lazy)
        else:
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(child, lazy=lazy or function)


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def module_of(target: str) -> str | None:
    """Return the project's module that an import loads, ``None`` for anything foreign."""
    parts = target.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in modules():
            return name
    return None


def module_edges(name: str) -> set[str]:
    """Return the modules that importing one module loads directly: its imports and the packages around them."""
    targets = {module_of(imported.target) for imported in imports_of(modules()[name]) if not imported.lazy}
    direct = {target for target in targets if target is not None}
    # The packages around the module itself are being loaded already; only a name taken from one of them is an edge.
    around = {outer for target in direct for outer in packages_around(target)} - packages_around(name)
    return (direct | around) & modules().keys() - {name}


def packages_around(name: str) -> set[str]:
    """Return the packages that contain a module."""
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}
