"""The commands keys, bundle and broker: for people, for machines, and when something is wrong."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from protocol.broker_cli import broker
from protocol.bundle import write_bundle
from protocol.bundle_cli import bundle
from protocol.console import ErrorGroup
from protocol.keys import PrivateKey, PublicKey
from protocol.keys_cli import keys
from tests.protocol.samples import bundle_files, manifest

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs one command line in a fresh folder."""
    monkeypatch.chdir(tmp_path)
    root = ErrorGroup(commands={"bundle": bundle, "keys": keys, "broker": broker})
    return lambda *words: CliRunner().invoke(root, [str(word) for word in words])


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a folder with the bundle, release.key and release.pub."""
    key = PrivateKey.generate()
    key.save(tmp_path / "release.key")
    key.public.save(tmp_path / "release.pub")
    write_bundle(tmp_path / "bundle", manifest(), bundle_files(), key)
    return tmp_path


def answer(result: Result) -> Any:
    """Return the one JSON object on standard output."""
    return json.loads(result.stdout)


def test_a_new_pair_of_keys(run: Run, tmp_path: Path) -> None:
    result = run("keys", "new", "release", "--out", "keys")
    assert result.exit_code == 0
    public = PublicKey.open(tmp_path / "keys" / "release.pub")
    assert public == PrivateKey.open(tmp_path / "keys" / "release.key").public
    assert public.fingerprint in result.stdout
    assert stat.S_IMODE((tmp_path / "keys" / "release.key").stat().st_mode) == 0o600
    assert answer(run("keys", "show", "keys/release.pub", "--json")) == {"fingerprint": public.fingerprint, "public": public.hex}
    assert run("keys", "show", "keys/release.pub").stdout == f"{public.fingerprint}  {public.hex}\n"


@pytest.mark.parametrize("taken", ["a.key", "a.pub"])
def test_no_key_is_overwritten_and_no_half_pair_left(run: Run, tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    result = run("keys", "new", "a", "--json")
    assert (result.exit_code, answer(result)["error"]) == (72, "KeyFileError")
    assert [path.name for path in tmp_path.iterdir()] == [taken]


@pytest.mark.parametrize("name", ["../a", "a/b", "", ".a", "a b"])
def test_key_names_stay_in_their_folder(run: Run, tmp_path: Path, name: str) -> None:
    assert run("keys", "new", name).exit_code == 10
    assert list(tmp_path.iterdir()) == []


def test_a_private_key_is_not_shown(run: Run, release: Path) -> None:
    result = run("keys", "show", "release.key")
    assert result.exit_code == 72
    assert (release / "release.key").read_text().strip().rpartition(":")[2] not in result.output


def test_verify_and_inspect(run: Run, release: Path) -> None:
    assert "is whole" in run("bundle", "verify", "bundle", "--trusted", "release.pub").stdout
    verified = answer(run("bundle", "verify", "bundle", "--trusted", "release.pub", "--json"))
    assert verified["files"] == 3
    shown = run("bundle", "inspect", "bundle", "--trusted", "release.pub").stdout
    assert "cat, dog" in shown
    assert "float32 [3], 0 to 1" in shown
    inspected = answer(run("bundle", "inspect", "bundle", "--trusted", "release.pub", "--json"))
    assert inspected["manifest"]["classes"] == ["cat", "dog"]
    assert inspected["digest"] == verified["digest"]


def test_the_trusted_key_may_come_from_the_environment(run: Run, release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("bundle", "verify", "bundle").exit_code == 2
    monkeypatch.setenv("FEDTAILOR_TRUSTED_KEY", "release.pub")
    assert run("bundle", "verify", "bundle").exit_code == 0


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_wrong_bundle_is_one_sentence_or_one_object(run: Run, release: Path, command: str) -> None:
    (release / "bundle" / "extra").write_bytes(b"x")
    result = run("bundle", command, "bundle", "--trusted", "release.pub")
    assert (result.exit_code, result.stdout) == (22, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    result = run("bundle", command, "bundle", "--trusted", "release.pub", "--json")
    assert (result.exit_code, result.stderr) == (22, "")
    assert answer(result).keys() == {"error", "message", "expected", "got", "hint", "exit_code"}
    assert (answer(result)["error"], answer(result)["exit_code"], answer(result)["got"]) == ("UnlistedFileError", 22, "extra")


def test_another_key_is_refused(run: Run, release: Path) -> None:
    run("keys", "new", "other")
    assert run("bundle", "verify", "bundle", "--trusted", "other.pub").exit_code == 23
    assert run("bundle", "verify", "bundle", "--trusted", "absent.pub").exit_code == 72


def test_a_taken_port_is_one_sentence(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("broker", "--port", taken.getsockname()[1])
    assert result.exit_code == 10
    assert "cannot listen" in result.stderr


@pytest.mark.parametrize(
    "words", [[], ["bundle"], ["keys"], ["bundle", "verify"], ["bundle", "inspect"], ["keys", "new"], ["keys", "show"], ["broker"]]
)
def test_every_command_explains_itself(run: Run, words: list[str]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    if len(words) == 2 or words == ["broker"]:
        assert "Example" in result.stdout
        assert "--json" in result.stdout


def test_hostile_text_cannot_move_the_cursor(run: Run, tmp_path: Path) -> None:
    hostile = "\x1b[2J\r\n\u202egood\u0007"
    content = manifest()
    graphs = {
        name: replace(spec, inputs=tuple(replace(each, meaning=hostile) for each in spec.inputs)) for name, spec in content.graphs.items()
    }
    key = PrivateKey.generate()
    key.public.save(tmp_path / "release.pub")
    signed = replace(content, graphs=graphs, raw_input=replace(content.raw_input, meaning=hostile), producer={hostile: hostile})
    write_bundle(tmp_path / "bundle", signed, bundle_files(), key)
    write_bundle(tmp_path / "other", content, bundle_files(), key)
    for words in (("inspect", "bundle"), ("diff", "bundle", "other"), ("diff", "other", "bundle")):
        shown = run("bundle", *words, "--trusted", "release.pub")
        assert shown.stdout.count("\n") >= 3
        assert all(line.isprintable() for line in shown.stdout.split("\n"))
    assert answer(run("bundle", "inspect", "bundle", "--trusted", "release.pub", "--json"))["manifest"]["producer"] == {hostile: hostile}
