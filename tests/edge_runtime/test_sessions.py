from __future__ import annotations

import sys

import numpy as np
import pytest

from edge_runtime.session_settings import SMALL_GRAPH_BYTES, SessionSettings
from edge_runtime.sessions import check_runtime, open_session, session_options
from protocol.errors import BundleError, IncompatibleVersionError, InputError, MissingExtraError
from tests.edge_runtime.tiny import BIAS, KERNEL, graphs


def test_a_graph_runs_from_its_bytes() -> None:
    session = open_session(graphs("device")["generate"].to_bytes(), "1.19")
    embedding = np.array([[0.2, 0.3, 0.5]], np.float32)
    kernel, bias = session.run({"embedding": embedding})
    np.testing.assert_allclose(kernel, (embedding @ KERNEL).reshape(1, 4, 3), rtol=1e-6)
    np.testing.assert_allclose(bias, embedding @ BIAS, rtol=1e-6)
    assert session.input_names == ("embedding",)


@pytest.mark.parametrize("graph", [b"", b"not a model", graphs("device")["generate"].to_bytes()[:-40]])
def test_what_the_runtime_refuses_is_a_bad_bundle(graph: bytes) -> None:
    with pytest.raises(BundleError):
        open_session(graph, "1.19")


@pytest.mark.parametrize(
    ("installed", "needed", "enough"),
    [("1.19.2", "1.19", True), ("1.32.0", "1.19", True), ("1.9.0", "1.19", False), ("2.0.0", "1.19", True), ("1.23.0rc1", "1.24", False)],
)
def test_versions_compare_as_numbers(monkeypatch: pytest.MonkeyPatch, installed: str, needed: str, enough: bool) -> None:
    monkeypatch.setattr("edge_runtime.sessions.onnxruntime.__version__", installed)
    if enough:
        check_runtime(needed)
        return
    with pytest.raises(IncompatibleVersionError, match=installed):
        check_runtime(needed)


def test_without_the_runtime_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "edge_runtime.sessions")
    with pytest.raises(MissingExtraError, match=r"fedtailor\[edge\]"):
        __import__("edge_runtime.sessions")


def test_the_providers_in_use_are_told() -> None:
    session = open_session(graphs("device")["generate"].to_bytes(), "1.19", providers=("CPUExecutionProvider",))
    assert session.providers == ("CPUExecutionProvider",)
    with pytest.raises(InputError, match="MoonExecutionProvider"):
        open_session(graphs("device")["generate"].to_bytes(), "1.19", providers=("MoonExecutionProvider",))


def test_the_options_are_the_edge_defaults() -> None:
    options = session_options(3)
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 1
    assert not options.enable_cpu_mem_arena
    assert not options.enable_mem_pattern
    assert options.log_severity_level == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_small_graphs_get_one_thread_and_large_ones_all_usable_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3, 5})
    assert SessionSettings().threads_for(SMALL_GRAPH_BYTES - 1) == 1
    assert SessionSettings().threads_for(SMALL_GRAPH_BYTES) == 3
    assert SessionSettings(threads=2).threads_for(10**9) == 2
    with pytest.raises(InputError):
        SessionSettings(threads=0)


def test_a_missing_input_is_an_error() -> None:
    session = open_session(graphs("device")["generate"].to_bytes(), "1.19")
    with pytest.raises(Exception, match="embedding"):
        session.run({})
