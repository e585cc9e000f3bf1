"""The store's commands as a device engineer types them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from edge_runtime.bundle import Bundle
from fedtailor import main
from protocol.errors import RefusedBundleError, StoreError
from protocol.keys import PrivateKey
from tests.edge_runtime.tiny import raw_samples, write_tiny


def edge(*words: object) -> Result:
    return CliRunner(env={"FEDTAILOR_TRUSTED_KEY": "", "FEDTAILOR_STORE": ""}).invoke(main, ["edge", *map(str, words)])


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "var" / "lib" / "fedtailor"


def test_the_whole_way(bundle: Bundle, place: Path, trusted_file: Path, tmp_path: Path, release_key: PrivateKey) -> None:
    installed = edge("install", bundle.path, "--store", place, "--trusted", trusted_file, "--json")
    assert installed.exit_code == 0, installed.output
    content = json.loads(installed.output)
    assert content["states"] == ["offered", "staged", "verified", "tested", "trial"]
    assert content["trial"]["digest"] == bundle.digest
    assert content["trial"]["worst_difference"] < 1e-4
    assert content["seconds"] > 0
    assert "in use already (trial)" in edge("install", bundle.path, "--store", place, "--trusted", trusted_file).output

    np.save(tmp_path / "support.npy", raw_samples(20))
    made = edge("personalize", place, tmp_path / "support.npy", "--trusted", trusted_file, "--out", tmp_path / "mine")
    assert made.exit_code == 0, made.output
    answers = edge("predict", tmp_path / "mine", tmp_path / "support.npy", "--bundle", place, "--trusted", trusted_file)
    assert len(answers.output.splitlines()) == 20
    assert edge("predict", tmp_path / "mine", tmp_path / "support.npy").output == answers.output
    status = json.loads(edge("store", "status", "--store", place, "--json").output)
    assert (status["state"], status["trial"]["uses"], status["trial"]["starts"]) == ("trial", 2, 0)

    assert json.loads(edge("store", "promote", "--store", place, "--json").output)["rollback_counter"] == 1
    newer = write_tiny(tmp_path / "newer", release_key, bundle_version=2)
    assert "worst difference" in edge("install", newer, "--store", place, "--trusted", trusted_file).output
    assert "2 uses" not in edge("store", "status", "--store", place).output
    rejected = edge("store", "reject", "--store", place, "--reason", "confuses cats and dogs")
    assert "confuses cats and dogs" in rejected.output
    again = edge("install", newer, "--store", place, "--trusted", trusted_file)
    assert again.exit_code == RefusedBundleError.exit_code
    assert "confuses cats and dogs" in again.output
    third = write_tiny(tmp_path / "third", release_key, bundle_version=3)
    edge("install", third, "--store", place, "--trusted", trusted_file)
    edge("store", "promote", "--store", place)
    assert "tiny version 1" in edge("store", "rollback", "--store", place).output.splitlines()[1]
    older = edge(
        "install", write_tiny(tmp_path / "second", release_key, bundle_version=2, created=5), "--store", place, "--trusted", trusted_file
    )
    assert older.exit_code == RefusedBundleError.exit_code
    assert older.output.count("\n") == 1


def test_classifiers_of_the_bundle_before_do_not_count_against_the_new_one(
    bundle: Bundle, place: Path, trusted_file: Path, tmp_path: Path, release_key: PrivateKey
) -> None:
    np.save(tmp_path / "support.npy", raw_samples(20))
    edge("install", bundle.path, "--store", place, "--trusted", trusted_file)
    edge("personalize", place, tmp_path / "support.npy", "--trusted", trusted_file, "--out", tmp_path / "mine")
    edge("store", "promote", "--store", place)
    edge("install", write_tiny(tmp_path / "newer", release_key, bundle_version=2), "--store", place, "--trusted", trusted_file)
    for _ in range(5):
        answer = edge("predict", tmp_path / "mine", tmp_path / "support.npy", "--bundle", place, "--trusted", trusted_file)
        assert answer.exit_code == 20
        assert "personalise again" in answer.output
    status = json.loads(edge("store", "status", "--store", place, "--json").output)
    assert (status["state"], status["trial"]["starts"]) == ("trial", 0)


@pytest.mark.parametrize("words", [["status"], ["promote"], ["reject"], ["rollback"]])
def test_an_absent_store_has_an_exit_code(place: Path, words: list[str]) -> None:
    answer = edge("store", *words, "--store", place, "--json")
    assert answer.exit_code == StoreError.exit_code
    assert json.loads(answer.output)["error"] == "StoreError"
    assert not place.exists()


@pytest.mark.parametrize(
    "words", [["install"], ["doctor"], ["store", "status"], ["store", "promote"], ["store", "reject"], ["store", "rollback"]]
)
def test_help_has_an_example(words: list[str]) -> None:
    answer = edge(*words, "--help")
    assert answer.exit_code == 0
    assert f"Example: fedtailor edge {' '.join(words)}" in answer.output
