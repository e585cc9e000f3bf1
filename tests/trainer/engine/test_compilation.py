"""Compiled steps: what happens without a compiler, with one that fails, and with a real one; and the engine that chooses."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from protocol.errors import InputError
from tests.trainer.engine.toys import Toy
from tests.trainer.methods.small_federation import SEED, assert_close, assert_equal, bound, make_clients
from trainer.engine import auto, compilation
from trainer.engine.auto import AutoEngine, Choice
from trainer.engine.base import Client, Engine, RoundKey, RoundResult
from trainer.engine.cohort import CohortEngine
from trainer.engine.compilation import Compiler, compiler_found
from trainer.engine.loop import LoopEngine
from trainer.methods.base import Method, State

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what is compiled in a folder of the test."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    return tmp_path / "compiled"


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX", raising=False)


def one_round(engine: Engine, method: Method | None = None) -> RoundResult:
    method = method or Toy()
    return engine.run_round(method, method.initial_state(1), make_clients((9, 12)), RoundKey(SEED, 0))


def assert_same_round(one: RoundResult, other: RoundResult, tolerance: float) -> None:
    assert_close(one.updates.state, other.updates.state, tolerance)
    torch.testing.assert_close(one.losses, other.losses, rtol=tolerance, atol=0)


def test_without_a_compiler_steps_run_uncompiled_and_it_is_said(no_compiler: None) -> None:
    compiler = Compiler()
    assert not compiler_found()
    assert_same_round(one_round(CohortEngine()), one_round(CohortEngine(compiler=compiler)), 1e-12)
    assert compiler.failure == "no C++ compiler was found"
    assert compiler.seconds == 0


def test_the_compiler_that_the_environment_names_is_found(no_compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "my-compiler"))
    assert not compiler_found()
    (tmp_path / "my-compiler").write_text("#!/bin/sh\n")
    (tmp_path / "my-compiler").chmod(0o755)
    assert compiler_found()


def failing(*args: object, **options: object) -> object:
    def run(*inputs: object) -> object:
        raise RuntimeError("the linker is missing\nand more that nobody reads")

    return run


def test_a_compiler_that_fails_is_asked_once_and_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compilation, "compiler_found", lambda: True)
    monkeypatch.setattr(torch, "compile", failing)
    compiler = Compiler()
    with caplog.at_level(logging.WARNING):
        result = one_round(CohortEngine(chunk_size=1, compiler=compiler))
        one_round(CohortEngine(chunk_size=2, compiler=compiler))
    assert_same_round(one_round(CohortEngine()), result, 1e-12)
    assert compiler.failure == "RuntimeError: the linker is missing"
    assert compiler.seconds > 0
    assert [record.message for record in caplog.records] == [
        "compilation failed, steps run uncompiled: RuntimeError: the linker is missing"
    ]


class Slow:
    """An engine that sleeps for each round, made in place of a real one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.rounds = 0

    def run_round(
        self, method: Method, server: State, clients: Sequence[Client], key: RoundKey, private: Mapping[str, State] | None = None
    ) -> RoundResult:
        self.rounds += 1
        time.sleep(self.seconds)
        return LoopEngine(traced=False).run_round(method, server, clients, key, private)


@pytest.mark.parametrize(("loop", "cohort", "faster"), [(0.0, 0.2, "loop"), (0.2, 0.0, "cohort")])
def test_the_faster_engine_runs(monkeypatch: pytest.MonkeyPatch, no_compiler: None, loop: float, cohort: float, faster: str) -> None:
    engines = {"loop": Slow(loop), "cohort": Slow(cohort)}
    monkeypatch.setattr(auto, "LoopEngine", lambda: engines["loop"])
    monkeypatch.setattr(auto, "CohortEngine", lambda compiler: engines["cohort"])
    engine = AutoEngine(rounds=1000)
    first = one_round(engine)
    chosen = engine.choice
    assert chosen is not None
    assert chosen.name == faster
    assert "loop " in chosen.reason
    assert "cohort " in chosen.reason
    assert "ms a client" in chosen.reason
    assert "not compiled: no C++ compiler was found" in chosen.reason
    trials = {name: each.rounds for name, each in engines.items()}
    second = one_round(engine)
    assert {name: each.rounds - trials[name] for name, each in engines.items()} == {faster: 1, ({"loop", "cohort"} - {faster}).pop(): 0}
    assert engine.choice is chosen
    assert_same_round(first, second, 0)


def test_trials_leave_everything_as_it_was(no_compiler: None) -> None:
    method, clients = bound("ditto"), make_clients()
    server = method.initial_state(1)
    before = {name: tensor.clone() for name, tensor in server.items()}
    first = LoopEngine(traced=False).run_round(method, server, clients, RoundKey(SEED, 0))
    kept = {device: {name: tensor.clone() for name, tensor in own.items()} for device, own in first.private.items()}
    AutoEngine().run_round(method, server, clients, RoundKey(SEED, 1), first.private)
    assert_equal(before, server)
    for device, own in kept.items():
        assert_equal(own, first.private[device])


@pytest.mark.parametrize("name", ["loop", "cohort"])
def test_a_choice_is_kept_without_trials(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("it was timed")

    monkeypatch.setattr(AutoEngine, "_choose", refuse)
    runs = [one_round(AutoEngine(choice=Choice(name, "from before"))) for _ in range(2)]
    assert_equal(runs[0].updates.state, runs[1].updates.state)
    assert_same_round(one_round(LoopEngine() if name == "loop" else CohortEngine()), runs[0], 0)
    engine = AutoEngine(choice=Choice(name, "from before"))
    one_round(engine)
    assert engine.choice == Choice(name, "from before")


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(InputError, match="loop or cohort or compiled, got warp"):
        AutoEngine(choice=Choice("warp", "a damaged file"))


@pytest.mark.parametrize("rounds", [None, 1])
def test_compilation_that_cannot_pay_is_not_tried(monkeypatch: pytest.MonkeyPatch, rounds: int | None) -> None:
    monkeypatch.setattr(compilation, "compiler_found", lambda: True)
    monkeypatch.setattr(torch, "compile", failing)
    engine = AutoEngine(rounds)
    one_round(engine)
    assert engine.choice is not None
    assert engine.choice.reason.endswith("; compiling would not pay for itself")
    assert engine.compiler.failure is None


def test_compilation_that_failed_is_never_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "compiler_found", lambda: True)
    monkeypatch.setattr(torch, "compile", failing)
    monkeypatch.setattr(auto, "LoopEngine", lambda: Slow(0.2))
    monkeypatch.setattr(auto, "CohortEngine", lambda compiler: Slow(0.3) if compiler is None else CohortEngine(compiler=compiler))
    engine = AutoEngine(rounds=100_000)
    one_round(engine)
    assert engine.choice is not None
    assert engine.choice.name == "loop"
    assert "compiled " not in engine.choice.reason.partition(";")[0]
    assert "not compiled: RuntimeError: the linker is missing" in engine.choice.reason


COMPILING = """
import json, sys
import torch
from tests.trainer.methods.small_federation import COHORT, SEED, bound, make_clients
from trainer.engine.base import RoundKey
from trainer.engine.cohort import CohortEngine
from trainer.engine.compilation import Compiler

torch.set_num_threads(1)
compiler, clients = Compiler(), make_clients((20, 24))
difference = 0.0
for name in ("fedavg", "fedprox"):
    method = bound(name, torch.float32)
    server = method.initial_state(1)
    for number in range(2):
        one, two = (engine.run_round(method, server, clients, RoundKey(SEED, number)) for engine in (COHORT, CohortEngine(2, compiler)))
        for key, tensor in one.updates.state.items():
            difference = max(difference, float((tensor - two.updates.state[key]).abs().max()))
        server = method.aggregate(server, one.updates)
sys.stdout.write(json.dumps({"seconds": compiler.seconds, "failure": compiler.failure, "difference": difference}))
"""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(not compiler_found(), reason="needs a C++ compiler")
def test_a_real_compiler_gives_the_same_numbers_and_is_quicker_from_its_cache(cache: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    found = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", COMPILING], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
        assert found[-1]["failure"] is None
        assert found[-1]["difference"] <= 1e-5
        assert found[-1]["seconds"] > 0
    assert any(cache.rglob("*.so"))
    assert found[1]["seconds"] < found[0]["seconds"]
