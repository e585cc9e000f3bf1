"""The same files on the oldest ONNX Runtime that we serve and on the newest there is, each in a process of its own.

Both come from the package index into folders beside the environment's own, so that the one in use does not matter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge_runtime.adapters import make_adapter
from export.adapters import write_onnx_adapter
from export.flat_module import flat_module
from export.runtimes import FIRST_WITH_ADAPTERS, OLDEST_SERVED, RELEASES
from tests.export.exported import Exported, exported_lora, exported_method, exported_variant, lora_factors, lora_spec
from tests.source_tree import ROOT
from trainer.methods.parts import PartTensor

pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.network]

BATCHES = (1, 3, 17)
TOLERANCE = 1e-5
PATCHES = {"1.19": "1.19.2", "1.20": "1.20.1"}  # the last of each
PYTHON = sys.version_info[1]
OLDEST = next(each.name for each in RELEASES if each.version >= OLDEST_SERVED and each.pythons[0] <= PYTHON <= each.pythons[1])


def cases() -> dict[str, Exported]:
    """Return every exported role by a name of its own."""
    groups = {
        "fedavg": exported_method("fedavg"),
        "hyperfedzero": exported_method("hyperfedzero"),
        "images-each": exported_variant("lenet-s", (1, 16, 16), "sample", "whole"),
        "lora": (exported_lora(),),
    }
    return {f"{name}-{case.part.entry_point}": case for name, group in groups.items() for case in group}


def feeds_of(case: Exported) -> dict[str, dict[str, np.ndarray]]:
    """Return named feeds: all inputs at several batch sizes, and one without the optional inputs."""
    random = np.random.default_rng(2)

    def array(tensor: PartTensor, sizes: dict[str, int]) -> np.ndarray:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in tensor.shape]
        return random.uniform(tensor.minimum, tensor.maximum, shape).astype(tensor.dtype)

    def feed(batch: int, rank: int) -> dict[str, np.ndarray]:
        return {each.name: array(each, {"batch": batch, "rank": rank}) for each in case.part.inputs}

    feeds = {f"batch-{batch}": feed(batch, 4) for batch in BATCHES}
    optional = {each.name for each in case.part.inputs if each.optional}
    if optional:
        feeds["base"] = {name: array for name, array in feed(3, 4).items() if name not in optional}
    return feeds


def expected_of(case: Exported, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what torch computes."""
    empty = {
        each.name: np.zeros([0 if isinstance(axis, str) else axis for axis in each.shape], each.dtype)
        for each in case.part.inputs
        if each.optional
    }
    arrays: dict[str, Any] = {**empty, **feed}
    with torch.no_grad():
        return [output.numpy() for output in flat_module(case.part)(*(torch.from_numpy(arrays[each.name]) for each in case.part.inputs))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with graphs, feeds and an adapter file."""
    made = tmp_path_factory.mktemp("graphs")
    for name, case in cases().items():
        (made / f"{name}.onnx").write_bytes(case.graph)
        arrays: dict[str, Any] = {f"{feed}/{key}": array for feed, inputs in feeds_of(case).items() for key, array in inputs.items()}
        np.savez(made / f"{name}.npz", **arrays)
    write_onnx_adapter(made / "lora-classify.onnx_adapter", make_adapter(lora_factors(4), lora_spec()), 1, "1.20")
    return made


def install(requirement: str, target: Path) -> None:
    """Install one package without what it needs: numpy is there, and a session needs nothing else."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    answer = subprocess.run([*command, "--target", target, requirement], capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return
    unreachable = any(
        words in answer.stderr for words in ("Connection", "connection", "Temporary failure", "timed out", "from versions: none")
    )
    if unreachable and not os.environ.get("CI"):
        pytest.skip(f"the package index cannot be reached: {answer.stderr.strip().splitlines()[-1]}")
    pytest.fail(f"{requirement} cannot be installed: {answer.stderr}")


def outputs_on(requirement: str, folder: Path, work: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Return the version of an ONNX Runtime and what it computes."""
    install(requirement, work / "packages")
    environment = {**os.environ, "PYTHONPATH": str(work / "packages"), "OMP_NUM_THREADS": "1"}
    command: list[str | Path] = [sys.executable, ROOT / "tests" / "export" / "run_on_runtime.py", folder, work / "outputs.npz"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    with np.load(work / "outputs.npz") as arrays:
        return answer.stdout.strip(), dict(arrays)


@pytest.fixture(scope="module")
def oldest(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, np.ndarray]]:
    return outputs_on(f"onnxruntime=={PATCHES[OLDEST]}", folder, tmp_path_factory.mktemp("oldest"))


@pytest.fixture(scope="module")
def newest(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, np.ndarray]]:
    return outputs_on("onnxruntime", folder, tmp_path_factory.mktemp("newest"))


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def test_the_two_runtimes_are_the_oldest_and_a_newer_one(
    oldest: tuple[str, dict[str, np.ndarray]], newest: tuple[str, dict[str, np.ndarray]]
) -> None:
    assert oldest[0] == PATCHES[OLDEST]
    assert numbers(newest[0]) > numbers(oldest[0])
    assert numbers(newest[0]) >= FIRST_WITH_ADAPTERS


@pytest.mark.parametrize("age", ["oldest", "newest"])
def test_every_role_computes_what_torch_computes(
    age: str, oldest: tuple[str, dict[str, np.ndarray]], newest: tuple[str, dict[str, np.ndarray]]
) -> None:
    _, outputs = {"oldest": oldest, "newest": newest}[age]
    compared = 0
    for name, case in cases().items():
        for feed, inputs in feeds_of(case).items():
            for place, expected in enumerate(expected_of(case, inputs)):
                np.testing.assert_allclose(outputs[f"{name}/{feed}/{place}"], expected, rtol=1e-4, atol=TOLERANCE, err_msg=f"{name} {feed}")
                compared += 1
    assert compared == len([key for key in outputs if "/adapter/" not in key]) > 30


def test_both_runtimes_agree(oldest: tuple[str, dict[str, np.ndarray]], newest: tuple[str, dict[str, np.ndarray]]) -> None:
    for key, output in oldest[1].items():
        np.testing.assert_allclose(newest[1][key], output, rtol=TOLERANCE, atol=TOLERANCE, err_msg=key)


def test_an_adapter_file_is_a_feed_on_the_newest(newest: tuple[str, dict[str, np.ndarray]]) -> None:
    base = feeds_of(exported_lora())["base"]
    expected = expected_of(exported_lora(), {**base, **lora_factors(4)})[0]
    np.testing.assert_allclose(newest[1]["lora-classify/adapter/0"], expected, atol=TOLERANCE)
    assert np.abs(expected - newest[1]["lora-classify/base/0"]).max() > 0.01
