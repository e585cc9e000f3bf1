"""The import rule: which package may know which, and which libraries each file may load."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.source_tree import PACKAGES, ROOT, imports_of, module_edges, modules, tree_of

FORBIDDEN_ON_DEVICES = {"torch", "onnx", "onnxscript"}
PICKLING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
ONLY_IN = {"paho": "protocol.mqtt_session", "amqtt": "protocol.broker"}
OWN = {*PACKAGES, "fedtailor"}


def package(name: str) -> str:
    return name.partition(".")[0]


def foreign_roots(name: str) -> set[str]:
    return {package(imported.target) for imported in imports_of(modules()[name])} - OWN


def test_the_tree_was_found() -> None:
    assert {package(name) for name in modules()} == OWN


def test_imports_point_one_way() -> None:
    order = [*PACKAGES, "fedtailor"]
    wrong = [
        f"{name}:{imported.line} imports {imported.target}"
        for name, path in modules().items()
        for imported in imports_of(path)
        if package(imported.target) in OWN and order.index(package(imported.target)) > order.index(package(name))
    ]
    assert wrong == []


def test_every_package_import_is_absolute() -> None:
    relative = [f"{name}:{found.line}" for name, path in modules().items() for found in imports_of(path) if found.target.startswith(".")]
    assert relative == []


def test_no_module_is_in_a_cycle() -> None:
    try:
        TopologicalSorter({name: module_edges(name) for name in modules()}).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


def test_nobody_imports_examples_tests_or_benchmarks() -> None:
    outside = {"examples", "tests", "benchmarks"}
    assert [name for name in modules() if foreign_roots(name) & outside] == []


@pytest.mark.parametrize("folder", ["protocol", "edge_runtime"])
def test_device_packages_reach_no_training_library(folder: str) -> None:
    reached = {name: roots for name in reachable(folder) if (roots := foreign_roots(name) & FORBIDDEN_ON_DEVICES)}
    assert reached == {}


def reachable(folder: str) -> set[str]:
    """Return the project's modules that a package reaches through module-level imports."""
    seen: set[str] = set()
    waiting = {name for name in modules() if package(name) == folder}
    while waiting:
        name = waiting.pop()
        seen.add(name)
        waiting |= module_edges(name) - seen
    return seen


@pytest.mark.parametrize(("library", "owner"), ONLY_IN.items())
def test_transport_libraries_stay_in_one_module(library: str, owner: str) -> None:
    assert [name for name in modules() if library in foreign_roots(name) and name != owner] == []


def test_onnxruntime_stays_in_one_device_module() -> None:
    device = [name for name in modules() if package(name) in {"protocol", "edge_runtime"} and "onnxruntime" in foreign_roots(name)]
    assert set(device) <= {"edge_runtime.sessions"}


def test_the_command_line_module_imports_nothing_heavy() -> None:
    eager = {package(found.target) for found in imports_of(modules()["fedtailor"]) if not found.lazy}
    assert eager - set(sys.stdlib_module_names) <= {"click", "protocol"}


def test_nothing_is_pickled() -> None:
    assert {name: roots for name in modules() if (roots := foreign_roots(name) & PICKLING)} == {}


def test_no_call_allows_pickles() -> None:
    wrong = [f"{name}: {ast.unparse(node)}" for name, path in modules().items() for node in ast.walk(tree_of(path)) if allows_pickles(node)]
    assert wrong == []


def allows_pickles(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
        return not (isinstance(node.value, ast.Constant) and node.value.value is False)
    return isinstance(node, ast.Attribute) and ast.unparse(node) in {"torch.load", "torch.save", "torch.jit.load"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("edge_runtime", {*FORBIDDEN_ON_DEVICES, "sympy", "onnxruntime", "paho", "amqtt", "PIL"}),
        ("protocol", {*FORBIDDEN_ON_DEVICES, "sympy", "onnxruntime", "paho", "amqtt", "PIL"}),
        ("fedtailor", {*FORBIDDEN_ON_DEVICES, "sympy", "onnxruntime", "paho", "amqtt", "PIL", "sklearn"}),
    ],
)
def test_importing_stays_light(module: str, absent: set[str]) -> None:
    code = f"import sys, {module}; print(*(name for name in sys.modules if '.' not in name))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert absent & set(loaded) == set()


def test_each_device_module_stays_free_of_torch() -> None:
    """Importing every module of both device packages, command lines and transports included, loads no training library."""
    names = [name for name in modules() if package(name) in {"protocol", "edge_runtime"} and not name.endswith("__main__")]
    code = f"import sys, importlib; [importlib.import_module(name) for name in {names}]; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert FORBIDDEN_ON_DEVICES & set(loaded) == set()


def test_banned_imports_are_the_same_in_every_folder() -> None:
    """A table of banned imports in a nearer ruff.toml replaces the general one, so it must repeat it."""
    everywhere = banned(ROOT / "pyproject.toml", "[tool.ruff.lint.flake8-tidy-imports.banned-api]")
    for folder in ("protocol", "edge_runtime"):
        assert banned(ROOT / folder / "ruff.toml", "[lint.flake8-tidy-imports.banned-api]") - everywhere == FORBIDDEN_ON_DEVICES
        assert everywhere <= banned(ROOT / folder / "ruff.toml", "[lint.flake8-tidy-imports.banned-api]")


def banned(path: Path, table: str) -> set[str]:
    """Return the names in a table; tomllib exists only since Python 3.11, and the table has one name a line."""
    body = path.read_text(encoding="utf-8").split(f"{table}\n")[1].split("\n[")[0]
    return {line.split('"')[1] for line in body.splitlines() if line.startswith('"')}
