"""What an ONNX Runtime cannot load is refused before anything is exported, in one sentence."""

from __future__ import annotations

from itertools import pairwise

import onnxruntime
import pytest
from click.testing import CliRunner

from export.runtimes import RELEASES, check_adapter_api, check_graph_versions, check_target, find_release
from fedtailor import main
from protocol.errors import IncompatibleVersionError, InputError
from protocol.runtime_support import HIGHEST, highest_versions


def test_the_table_grows() -> None:
    assert [each.version for each in RELEASES] == sorted({each.version for each in RELEASES})
    for older, newer in pairwise(RELEASES):
        assert newer.opset >= older.opset
        assert newer.ir_version >= older.ir_version


def test_the_installed_runtime_has_what_the_table_says() -> None:
    assert find_release(onnxruntime.__version__).has_adapters == hasattr(onnxruntime, "AdapterFormat")


@pytest.mark.parametrize(
    ("target", "python", "minimum"),
    [("1.19", None, "1.19"), ("1.19.2", "3.10", "1.19"), ("1.32", "3.13", "1.32"), ("1.40.1", None, "1.40"), ("1.23.2", "3.10", "1.23")],
)
def test_the_minimum_of_the_manifest_is_the_target(target: str, python: str | None, minimum: str) -> None:
    assert check_target(target, python) == minimum


@pytest.mark.parametrize(
    ("target", "python", "words"),
    [
        ("1.13", None, "cannot load opset 18 with IR 8: expected at most opset 17 and IR 8; the oldest that can is 1.14"),
        ("1.16.3", None, "too old for the device's code"),
        ("1.9", None, "too old for any graph"),
        ("1.24", "3.10", "no wheel for this Python: expected 3.11 to 3.14, got 3.10; for Python 3.10 take 1.19 to 1.23"),
        ("1.20", "3.9", "for Python 3.9 take 1.19 to 1.19"),
        ("1.19", "3.13", "for Python 3.13 take 1.20"),
    ],
)
def test_impossible_targets_are_refused(target: str, python: str | None, words: str) -> None:
    with pytest.raises(IncompatibleVersionError) as raised:
        check_target(target, python)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("target", "python"), [("new", None), ("1", None), ("1.x", None), ("", None), ("1.19", "2.7"), ("1.19", "3")])
def test_what_is_no_version_is_refused(target: str, python: str | None) -> None:
    with pytest.raises(InputError, match="version"):
        check_target(target, python)


def test_a_graph_that_is_too_new_is_refused() -> None:
    check_graph_versions(find_release("1.19"), 21, 10)
    for opset, ir_version in [(22, 8), (18, 11), (99, 99)]:
        with pytest.raises(IncompatibleVersionError, match="the oldest that can is"):
            check_graph_versions(find_release("1.19"), opset, ir_version)


def test_adapter_files_need_1_20() -> None:
    check_adapter_api("1.20")
    with pytest.raises(IncompatibleVersionError, match=r"feed the factors as inputs"):
        check_adapter_api("1.19.2")


def test_the_command_refuses_before_it_reads_anything() -> None:
    answer = CliRunner().invoke(main, ["export", "no-run", "--out", "nowhere", "--sign", "no.key", "--target-runtime", "1.13"])
    assert answer.exit_code == IncompatibleVersionError.exit_code
    assert "opset 18" in answer.output


def test_devices_hold_the_same_numbers() -> None:
    for release in RELEASES:
        assert highest_versions(release.name) == (release.opset, release.ir_version)
    for first, versions in HIGHEST.items():
        assert versions == (find_release(f"1.{first}").opset, find_release(f"1.{first}").ir_version)
