"""Children that misbehave: each ends within its limits, and its parent says how."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from edge_runtime.bundle import Bundle
from edge_runtime.child import ChildOutcome, Limits, run_child
from edge_runtime.selftest import check_selftest
from protocol.errors import BundleFileError, IncompatibleVersionError, MissingExtraError, SelfTestError

SMALL = Limits(memory_bytes=400 << 20, cpu_seconds=20, wall_seconds=20)
CHILDREN = {
    "answers": "def answer(request): return request['number'] + 1",
    "raises": "from protocol.errors import InputError\ndef answer(request): raise InputError('no', hint='yes')",
    "eats": "def answer(request): return len(bytearray(1 << 30))",
    "spins": "def answer(request):\n    while True: pass",
    "sleeps": "import time\ndef answer(request): time.sleep(60)",
    "dies": "import os, signal\ndef answer(request): os.kill(os.getpid(), signal.SIGILL)",
    "exits": "import sys\ndef answer(request): print('noise'); sys.exit(3)",
    "limits": "import resource\ndef answer(request): return [resource.getrlimit(k)[0] for k in (resource.RLIMIT_AS, resource.RLIMIT_CPU)]",
}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in CHILDREN.items():
        (tmp_path / f"child_that_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_answer_comes_back() -> None:
    outcome = run_child("child_that_answers", {"number": 41}, SMALL)
    assert (outcome.content, outcome.error, outcome.signal, outcome.timed_out) == (42, None, None, False)


def test_an_error_of_the_tree_comes_back() -> None:
    outcome = run_child("child_that_raises", {}, SMALL)
    assert outcome.content is None
    assert outcome.error == {"class": "InputError", "sentence": "no; yes", "exit_code": 10}


def test_memory_is_bounded() -> None:
    outcome = run_child("child_that_eats", {}, SMALL)
    assert outcome.error is not None
    assert outcome.error["class"] == "MemoryError"


def test_limits_stand_in_the_child() -> None:
    assert run_child("child_that_limits", {}, SMALL).content == [400 << 20, 20]


def test_processor_time_is_bounded() -> None:
    outcome = run_child("child_that_spins", {}, Limits(cpu_seconds=1, wall_seconds=60))
    assert (outcome.content, outcome.signal) == (None, "SIGXCPU")


def test_time_on_the_clock_is_bounded() -> None:
    started = time.monotonic()
    outcome = run_child("child_that_sleeps", {}, Limits(wall_seconds=0.5))
    assert outcome.timed_out
    assert outcome.signal is None
    assert time.monotonic() - started < 10


def test_an_illegal_instruction_is_named() -> None:
    assert run_child("child_that_dies", {}, SMALL).signal == "SIGILL"


def test_noise_is_no_answer() -> None:
    outcome = run_child("child_that_exits", {}, SMALL)
    assert (outcome.content, outcome.error, outcome.signal) == (None, None, None)


def test_whose_fault_a_failing_self_test_is(bundle: Bundle) -> None:
    check_selftest(bundle.path, bundle.digest, Limits())
    with pytest.raises(IncompatibleVersionError, match="took too long"):
        check_selftest(bundle.path, bundle.digest, Limits(wall_seconds=0.01))
    with pytest.raises(BundleFileError, match="was altered"):
        check_selftest(bundle.path, "0" * 64, Limits())
    with pytest.raises(IncompatibleVersionError, match="cannot be loaded"):
        check_selftest(bundle.path, bundle.digest, Limits(memory_bytes=60 << 20))


def outcome(stage: str = "graphs", *, error: str | None = None, signal: str | None = None, timed_out: bool = False) -> ChildOutcome:
    raised = None if error is None else {"class": error, "sentence": "it went wrong", "exit_code": 1}
    return ChildOutcome(None, raised, stage, signal, timed_out, "last words")


@pytest.mark.parametrize(
    ("ended", "kind", "words"),
    [
        (outcome(signal="SIGSEGV"), SelfTestError, "crashed.*SIGSEGV"),
        (outcome(signal="SIGXCPU"), SelfTestError, "stopped by a limit"),
        (outcome(signal="SIGKILL"), IncompatibleVersionError, "was killed"),
        (outcome(), SelfTestError, "last words"),
        (outcome(error="MemoryError"), SelfTestError, "it went wrong"),
        (outcome(error="BundleError"), SelfTestError, "it went wrong"),
        (outcome(error="IncompatibleVersionError"), IncompatibleVersionError, "it went wrong"),
        (outcome("runtime", error="MissingExtraError"), MissingExtraError, "it went wrong"),
        (outcome("runtime", signal="SIGILL"), IncompatibleVersionError, "cannot be loaded.*SIGILL"),
        (outcome("start"), IncompatibleVersionError, "last words"),
        (outcome(timed_out=True), IncompatibleVersionError, "took too long"),
    ],
)
def test_a_bundle_is_blamed_only_for_what_it_did(
    ended: ChildOutcome, kind: type[Exception], words: str, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_runtime.selftest.run_child", lambda *_: ended)
    with pytest.raises(kind, match=words) as caught:
        check_selftest(bundle.path, bundle.digest, Limits())
    assert type(caught.value) is kind
