"""``fedtailor report`` as people and programs call it, once with a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedtailor import main
from protocol.errors import RunFolderError
from tests.releases import train_run
from tests.trainer.report.made_up_runs import MadeUp
from tests.trainer.report.pages import Page
from trainer.data.presets import DIGITS
from trainer.methods.registry import method_settings


def test_a_real_run_becomes_a_page(tmp_path: Path) -> None:
    run = train_run(tmp_path / "run", "hyperfedzero", method_settings("hyperfedzero", DIGITS.methods["hyperfedzero"]))
    result = CliRunner().invoke(main, ["report", str(run.path), "--out", str(tmp_path / "deep" / "page.html")])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["runs: 1, methods: hyperfedzero", f"report: {tmp_path / 'deep' / 'page.html'}"]
    page = Page((tmp_path / "deep" / "page.html").read_text())
    assert page.rows[2][0] == "run"
    assert len(page.drawings()) >= 8
    assert repr(run.evaluation()["zacc"]) in page.values


def test_json_holds_runs_and_summary(tmp_path: Path) -> None:
    runs = [MadeUp(method, seed).write(tmp_path / f"{method}-{seed}") for method in ("fedavg", "other") for seed in (0, 1)]
    out = tmp_path / "page.html"
    result = CliRunner().invoke(main, ["report", *(str(run.path) for run in runs), "--out", str(out), "--json"])
    content = json.loads(result.output)
    assert content["report"] == str(out)
    assert [each["run"] for each in content["runs"]] == [str(run.path) for run in runs]
    assert [each["zacc"] for each in content["runs"]] == [run.evaluation()["zacc"] for run in runs]
    assert content["runs"][0]["parameters"] == 1234
    first, second = content["summary"]["fedavg"], content["summary"]["other"]
    assert first["seeds"] == [0, 1]
    assert first["differences"] is None
    assert second["differences"]["to"] == "fedavg"
    assert second["differences"]["zacc"]["mean"] == pytest.approx(second["means"]["zacc"]["mean"] - first["means"]["zacc"]["mean"])


def test_what_was_not_measured_is_null(tmp_path: Path) -> None:
    run = MadeUp(new_devices=0).write(tmp_path / "run")
    result = CliRunner().invoke(main, ["report", str(run.path), "--out", str(tmp_path / "page.html"), "--json"])
    content = json.loads(result.output, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert content["runs"][0]["zacc"] is None
    assert content["summary"]["fedavg"]["means"]["zacc"] == {"mean": None, "low": None, "high": None}


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["report", str(tmp_path), "--out", str(tmp_path / "page.html")])
    assert result.exit_code == RunFolderError.exit_code
    assert result.stderr.startswith(f"error: {tmp_path} is not a run folder")
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help_shows_an_example() -> None:
    result = CliRunner().invoke(main, ["report", "--help"])
    assert result.exit_code == 0
    assert "Example: fedtailor report" in result.output
