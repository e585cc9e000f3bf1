"""``fedtailor export`` in this process, on the run that the session's release was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from edge_runtime.bundle import Bundle
from fedtailor import main
from tests.releases import Release


def export(release: Release, out: Path, *words: str | Path, run: Path | None = None) -> Result:
    command = ["export", run or release.run.path, "--out", out, "--sign", release.root / "release.key", *words]
    return CliRunner().invoke(main, [str(word) for word in command])


def test_the_bundle_is_what_was_asked_for(release: Release, tmp_path: Path) -> None:
    release.coordinator_key.public.save(tmp_path / "coordinator.pub")
    words = [
        "--name",
        "digits-v2",
        "--bundle-version",
        "2",
        "--expires",
        "4000000000",
        "--target-runtime",
        "1.20.1",
        "--target-python",
        "3.11",
    ]
    answer = export(release, tmp_path / "bundle", *words, "--coordinator-key", tmp_path / "coordinator.pub", "--json")
    assert answer.exit_code == 0, answer.output
    content = json.loads(answer.stdout)
    bundle = Bundle.open(tmp_path / "bundle", release.trusted)
    manifest = bundle.manifest
    assert content["digest"] == bundle.digest
    assert content["bytes"] == sum(path.stat().st_size for path in (tmp_path / "bundle").rglob("*") if path.is_file())
    assert (manifest.name, manifest.bundle_version, manifest.expires) == ("digits-v2", 2, 4_000_000_000)
    assert manifest.minimum_onnxruntime == "1.20"
    assert manifest.coordinator_key == release.coordinator_key.public.hex
    assert manifest.producer.keys() >= {"torch", "onnx", "onnxruntime"}
    # The graphs are those of the first export, byte for byte.
    first = Bundle.open(release.bundle, release.trusted).manifest
    assert {path: manifest.files[path] for path in manifest.files if path.startswith("graphs/")} == {
        path: first.files[path] for path in first.files if path.startswith("graphs/")
    }


@pytest.mark.parametrize(("missing", "code"), [("run", 16), ("key", 72)])
def test_what_is_missing_has_an_exit_code(release: Release, tmp_path: Path, missing: str, code: int) -> None:
    words: list[str | Path] = ["--sign", tmp_path / "nobody.key"] if missing == "key" else []
    answer = export(release, tmp_path / "bundle", *words, run=tmp_path / "nothing" if missing == "run" else None)
    assert answer.exit_code == code
    assert not (tmp_path / "bundle").exists()
