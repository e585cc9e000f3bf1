"""Trust policies: n of m keys, successors that old and new owners signed, and their commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from protocol.bundle import add_signature, open_bundle, write_bundle
from protocol.bundle_cli import bundle
from protocol.console import ErrorGroup
from protocol.errors import BundleError, BundleSignatureError, IncompatibleVersionError, KeyFileError
from protocol.keys import PrivateKey
from protocol.keys_cli import keys
from protocol.trust import FORMAT, TrustFile, TrustPolicy, check_successor, open_trusted
from tests.protocol.samples import ModelParts, bundle_files, initializer, manifest

A, B, C, D = (PrivateKey(bytes([seed] * 32)) for seed in range(1, 5))
NOW = 1_000.0


def policy(*owners: PrivateKey, threshold: int = 2, version: int = 1, expires: int | None = None) -> TrustPolicy:
    return TrustPolicy(tuple(owner.public.hex for owner in owners), threshold, version, expires)


def successor(new: TrustPolicy, *signers: PrivateKey) -> TrustFile:
    return TrustFile(FORMAT, new, {}).signed(signers)


def test_a_bundle_needs_signatures_by_enough_different_keys(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", manifest(), bundle_files(), A)
    two_of_three = policy(A, B, C)
    with pytest.raises(BundleSignatureError, match="2 signatures"):
        open_bundle(tmp_path / "b", two_of_three)
    assert add_signature(tmp_path / "b", A) == 1
    assert add_signature(tmp_path / "b", D) == 2
    with pytest.raises(BundleSignatureError, match="got 1 of them"):
        open_bundle(tmp_path / "b", two_of_three)
    assert add_signature(tmp_path / "b", C) == 3
    assert open_bundle(tmp_path / "b", two_of_three).signers == (A.public.fingerprint, C.public.fingerprint)
    assert open_bundle(tmp_path / "b", D.public).signer == D.public.fingerprint


def test_a_broken_bundle_is_not_vouched_for(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", manifest(), bundle_files(), A)
    (tmp_path / "b" / "README.md").write_bytes(b"other")
    with pytest.raises(BundleError, match=r"README\.md"):
        add_signature(tmp_path / "b", B)


def test_a_successor_needs_old_and_new_owners() -> None:
    old, new = policy(A, B, C), policy(B, C, D, version=2)
    assert check_successor(old, successor(new, B, C), NOW) == new  # both are owners of either
    assert check_successor(old, successor(new, A, B, D), NOW) == new
    for signers, who in (((A, B), "new"), ((C, D), "old"), ((D,), "old"), ((), "old")):
        with pytest.raises(KeyFileError, match=f"too few {who} keys"):
            check_successor(old, successor(new, *signers), NOW)


def test_there_is_no_way_back_and_no_way_around() -> None:
    old = policy(A, B, version=3)
    for version in (2, 3, 5):
        with pytest.raises(KeyFileError, match="not the next one"):
            check_successor(old, successor(policy(A, B, version=version), A, B), NOW)
    file = successor(policy(A, B, version=4), A, B)
    with pytest.raises(KeyFileError, match="too few"):
        check_successor(old, replace(file, policy=policy(A, B, threshold=1, version=4)), NOW)  # signatures of another policy
    with pytest.raises(IncompatibleVersionError, match="expired"):
        check_successor(old, successor(policy(A, B, version=4, expires=999), A, B), NOW)


def test_a_lone_key_may_hand_over_to_a_policy() -> None:
    assert check_successor(A.public, successor(policy(A, B), A, B), NOW).threshold == 2
    with pytest.raises(KeyFileError, match="too few old"):
        check_successor(A.public, successor(policy(B, C), B, C), NOW)


@pytest.mark.parametrize(
    "values",
    [
        {"keys": ()},
        {"keys": ("00" * 32,)},
        {"threshold": 0},
        {"threshold": 4},
        {"version": 0},
        {"expires": 0},
        {"keys": (A.public.hex,) * 3},
    ],
)
def test_impossible_policies_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(KeyFileError, match="trust policy is wrong"):
        replace(policy(A, B, C), **values)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format":"fedtailor-trust/9","policy":{},"signatures":{}}', "fedtailor-ed25519-public:00"]
)
def test_what_is_no_trusted_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "trust.json").write_text(text)
    with pytest.raises(KeyFileError):
        open_trusted(tmp_path / "trust.json")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)
    for name, key in zip("abcd", (A, B, C, D), strict=True):
        key.save(tmp_path / f"{name}.key")
        key.public.save(tmp_path / f"{name}.pub")
    root = ErrorGroup(commands={"keys": keys, "bundle": bundle})
    return lambda *words: CliRunner().invoke(root, [str(word) for word in words])


def test_the_whole_life_of_a_policy_by_commands(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run("keys", "trust", "a.pub", "b.pub", "c.pub", "--threshold", 2, "--out", "trust.json").exit_code == 0
    write_bundle(tmp_path / "bundle", manifest(), bundle_files(), A)
    assert run("bundle", "verify", "bundle", "--trusted", "trust.json").exit_code == BundleSignatureError.exit_code
    assert json.loads(run("bundle", "sign", "bundle", "--sign", "b.key", "--json").stdout)["signatures"] == 2
    assert run("bundle", "verify", "bundle", "--trusted", "trust.json").exit_code == 0
    assert A.public.fingerprint in run("bundle", "inspect", "bundle", "--trusted", "trust.json").stdout
    first = run("keys", "rotate", "trust.json", "b.pub", "d.pub", "--sign", "b.key", "--out", "next.json", "--json")
    assert json.loads(first.stdout)["missing"] == {"old": 1, "new": 1}
    assert run("keys", "accept", "next.json", "--trusted", "trust.json").exit_code == KeyFileError.exit_code
    assert run("keys", "rotate", "trust.json", "--sign", "a.key", "--sign", "d.key", "--out", "next.json").exit_code == 0
    assert run("keys", "accept", "next.json", "--trusted", "trust.json").exit_code == 0
    assert "version 2: 2 of 2 keys" in run("keys", "show", "trust.json").stdout
    assert run("bundle", "verify", "bundle", "--trusted", "trust.json").exit_code == BundleSignatureError.exit_code
    run("bundle", "sign", "bundle", "--sign", "d.key")
    assert run("bundle", "verify", "bundle", "--trusted", "trust.json").exit_code == 0


def test_differences_are_named(run: Callable[..., Result], tmp_path: Path) -> None:
    write_bundle(tmp_path / "one", manifest(), bundle_files(), A)
    other = ModelParts(tensor=initializer("weight", np.arange(6, dtype=np.float32).reshape(3, 2) + np.float32(0.5))).to_bytes()
    changed = replace(manifest(), bundle_version=2, classes=("cat", "cow"))
    write_bundle(tmp_path / "two", changed, {**bundle_files(), "graphs/classify.onnx": other}, A)
    found = json.loads(run("bundle", "diff", "one", "two", "--trusted", "a.pub", "--json").stdout)
    assert [change["where"] for change in found] == ["bundle_version", "classes", "graphs/classify.onnx", "graphs/classify.onnx:weight"]
    assert found[-1]["after"] == "differs by at most 0.5, 10.0% of the largest"
    assert run("bundle", "diff", "one", "one", "--trusted", "a.pub").stdout == "no difference\n"


def test_operators_for_a_reduced_build(run: Callable[..., Result], tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", manifest(), bundle_files(), A)
    assert run("bundle", "operators", "bundle", "--trusted", "a.pub", "--out", "operators.config").exit_code == 0
    assert (tmp_path / "operators.config").read_text() == "ai.onnx;18;MatMul\n"
