"""A device's environment: ``pip install ".[edge]"`` alone, then everything a device does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.source_tree import ROOT, imports_of

pytestmark = [pytest.mark.slow, pytest.mark.network]

NOT_ON_DEVICES = ["torch", "onnx", "onnxscript", "sympy", "sklearn", "safetensors", "rich", "matplotlib"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` folder of a fresh environment with the edge extra, not editable."""
    folder = tmp_path_factory.mktemp("edge")
    venv.create(folder, with_pip=True)
    install(folder / "bin", f"{ROOT}[edge]")
    return folder / "bin"


def install(environment: Path, *requirements: str) -> None:
    command: list[str | Path] = [environment / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "--constraint", ROOT / "constraints.txt", *requirements], check=True)


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run without anything of this environment that would make the sources importable."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL_ENV"))}
    return subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)


def test_training_libraries_are_not_installed(environment: Path, tmp_path: Path) -> None:
    code = f"import importlib.util as u; print([name for name in {NOT_ON_DEVICES} if u.find_spec(name)])"
    assert run(environment / "python", "-c", code, cwd=tmp_path).stdout.strip() == "[]"


def test_a_device_needs_little_disk(tmp_path: Path) -> None:
    """Without the bytecode that pip compiles ahead, an eighth of it all: Python compiles what it uses."""
    folder = tmp_path / "target"
    command: list[str | Path] = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*command, "--target", folder, "--constraint", ROOT / "constraints.txt", f"{ROOT}[edge]"], check=True)
    used = sum(512 * path.lstat().st_blocks for path in folder.rglob("*"))
    assert used <= 180 * 1024 * 1024


def test_packages_come_from_the_installed_wheel(environment: Path, tmp_path: Path) -> None:
    code = "import edge_runtime, protocol; print(edge_runtime.__file__, protocol.__file__)"
    places = run(environment / "python", "-c", code, cwd=tmp_path).stdout.split()
    assert len(places) == 2
    assert all(Path(place).is_relative_to(environment.parent) for place in places)


@pytest.mark.parametrize("arguments", [["--help"], ["edge", "--help"], ["bundle", "--help"], ["keys", "--help"], ["broker", "--help"]])
def test_command_line_answers(environment: Path, tmp_path: Path, arguments: list[str]) -> None:
    answer = run(environment / "fedtailor", *arguments, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "Usage: fedtailor" in answer.stdout


def test_a_missing_extra_is_named(environment: Path, tmp_path: Path) -> None:
    answer = run(environment / "fedtailor", "train", "hyperfedzero", "--rounds", "1", cwd=tmp_path)
    assert answer.returncode == 41
    assert "fedtailor[train]" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_device_tests_pass_without_torch(environment: Path, tmp_path: Path) -> None:
    """The device's own tests, those that import no training library, pass on the installed wheel."""
    install(environment, "pytest", "pytest-xdist", "hypothesis")
    # A copy beside nothing: here only the installed packages can be imported.
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    files = [path.relative_to(ROOT) for path in sorted((ROOT / "tests" / "edge_runtime").glob("test_*.py")) if not needs_server(path)]
    assert files
    answer = run(environment / "python", "-m", "pytest", "-m", "not slow and not broker", *files, cwd=tmp_path)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def needs_server(path: Path) -> bool:
    """Say whether a test file imports, itself or through a helper in ``tests``, what only a server has."""
    targets = [imported.target.split(".") for imported in imports_of(path)]
    if any(parts[0] in {*NOT_ON_DEVICES, "trainer", "export"} for parts in targets):
        return True
    helpers = [ROOT.joinpath(*parts[:length]).with_suffix(".py") for parts in targets if parts[0] == "tests" for length in (2, 3, 4)]
    return any(needs_server(helper) for helper in helpers if helper.exists())
