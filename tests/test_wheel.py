"""The wheel holds what a user imports, nothing else, and asks for what the design allows."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.source_tree import PACKAGES, ROOT, modules

TRAIN = {"torch", "onnx", "onnxscript", "onnxruntime", "safetensors", "scikit-learn", "pillow", "rich", "matplotlib", "tomli"}
EXTRAS = {
    "edge": {"onnxruntime", "pillow"},
    "edge-gpu": {"onnxruntime-gpu", "pillow"},
    "train": TRAIN,
    "cluster": {"ray"},
    "tables": {"pyarrow"},
    "broker": {"amqtt"},
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def requirements(metadata: Message, extra: str | None = None) -> set[str]:
    """Return the names of the distributions that the base install or one extra asks for."""
    wanted = set()
    for line in metadata.get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        found = re.search(r"""extra == ['"]([\w-]+)['"]""", marker)
        if (found.group(1) if found else None) == extra:
            wanted.add(re.match(r"[\w.-]+", requirement).group().lower())  # type: ignore[union-attr]  # every requirement has a name
    return wanted


def test_wheel_is_pure_and_versioned(wheel: Path) -> None:
    assert re.fullmatch(r"fedtailor-\d+\.\d+\.\d+-py3-none-any\.whl", wheel.name)


def test_wheel_holds_the_four_packages_and_the_command(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert {name.split("/")[0] for name in names} == {*PACKAGES, "fedtailor.py"}
    assert {name for name in names if name.endswith(".py")} == {str(path.relative_to(ROOT)) for path in modules().values()}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert [name for name in names if Path(name).name in {"ruff.toml", "conftest.py"} or "test" in Path(name).parts] == []


def test_wheel_carries_the_license(wheel: Path, metadata: Message) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert metadata["License-Expression"] == "Apache-2.0"


def test_wheel_installs_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/entry_points.txt")]
        assert archive.read(name).decode().split() == ["[console_scripts]", "fedtailor", "=", "fedtailor:main"]


def test_base_install_is_what_a_device_needs(metadata: Message) -> None:
    assert requirements(metadata) == {"numpy", "click", "paho-mqtt", "cryptography"}


@pytest.mark.parametrize(("extra", "expected"), EXTRAS.items())
def test_extras(metadata: Message, extra: str, expected: set[str]) -> None:
    assert requirements(metadata, extra) == expected


def test_no_other_extras(metadata: Message) -> None:
    assert set(metadata.get_all("Provides-Extra", [])) == {*EXTRAS, "dev"}


def test_python_versions(metadata: Message) -> None:
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.14"}


def test_every_direct_requirement_is_pinned(metadata: Message) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [line for line in pins if not re.match(r"[a-z0-9-]+==[\w.]+( ; .+)?$", line)] == []
    wanted = requirements(metadata).union(*(requirements(metadata, extra) for extra in [*EXTRAS, "dev"] if extra != "edge-gpu"))
    assert wanted <= {line.split("==")[0] for line in pins}
