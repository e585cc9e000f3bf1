"""A bundle opens only when every byte is the signed one, and is written whole or not at all."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from protocol.bundle import check_expiry, open_bundle, write_bundle
from protocol.errors import (
    BundleError,
    BundleFileError,
    BundleSignatureError,
    IncompatibleVersionError,
    ManifestError,
    UnlistedFileError,
    UnsafeGraphError,
)
from protocol.keys import PrivateKey
from protocol.signatures import SignatureFile
from tests.protocol.samples import ModelParts, bundle_files, manifest, sign_as

KEY = PrivateKey(bytes(range(32)))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    write_bundle(tmp_path / "bundle", manifest(), bundle_files(), KEY)
    return tmp_path / "bundle"


def sign_again(bundle: Path, data: bytes) -> None:
    """Replace the manifest and sign it with the right key."""
    sign_as(bundle, data, KEY)


def test_a_bundle_comes_back(tmp_path: Path) -> None:
    digest = write_bundle(tmp_path / "new" / "bundle", manifest(), bundle_files(), KEY)
    opened = open_bundle(tmp_path / "new" / "bundle", KEY.public)
    assert dict(opened.files) == bundle_files()
    assert opened.digest == digest == hashlib.sha256((opened.path / "manifest.json").read_bytes()).hexdigest()
    assert replace(opened.manifest, files={}) == manifest()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["bundle"]


def test_a_flipped_byte_in_any_file_is_refused(bundle: Path) -> None:
    expected = {"manifest.json": BundleSignatureError, "manifest.sig": BundleSignatureError}
    for path in [path for path in bundle.rglob("*") if path.is_file()]:
        good = path.read_bytes()
        for place in {0, len(good) // 2, len(good) - 1}:
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(expected.get(path.name, BundleFileError)):
                open_bundle(bundle, KEY.public)
        path.write_bytes(good)
    open_bundle(bundle, KEY.public)


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig", "README.md", "graphs/classify.onnx"])
@pytest.mark.parametrize("change", ["missing", "longer", "shorter", "link", "folder"])
def test_a_file_that_is_not_the_listed_one_is_refused(bundle: Path, tmp_path: Path, name: str, change: str) -> None:
    path = bundle / name
    content = path.read_bytes()
    path.unlink()
    if change == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        path.symlink_to(tmp_path / "elsewhere")
    elif change == "folder":
        path.mkdir()
    elif change != "missing":
        path.write_bytes(content + b"x" if change == "longer" else content[:-2])
    with pytest.raises(BundleError):
        open_bundle(bundle, KEY.public)


def test_another_key_is_refused(bundle: Path) -> None:
    with pytest.raises(BundleSignatureError, match="another key"):
        open_bundle(bundle, PrivateKey.generate().public)


def test_a_signature_for_something_else_is_refused(bundle: Path) -> None:
    data = (bundle / "manifest.json").read_bytes()
    (bundle / "manifest.sig").write_bytes(SignatureFile.by(KEY, b"fedtailor-message/1\0" + data).to_bytes())
    with pytest.raises(BundleSignatureError):
        open_bundle(bundle, KEY.public)


@pytest.mark.parametrize("name", ["extra.txt", "graphs/other.onnx", ".hidden", "graphs/deep/file", "empty/"])
def test_an_unlisted_file_or_folder_is_refused(bundle: Path, name: str) -> None:
    path = bundle / name
    if name.endswith("/"):
        path.mkdir()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    with pytest.raises(UnlistedFileError):
        open_bundle(bundle, KEY.public)


@pytest.mark.parametrize("target", ["nowhere", "manifest.json"])
def test_an_unlisted_link_is_refused(bundle: Path, target: str) -> None:
    (bundle / "link").symlink_to(target)
    with pytest.raises(UnlistedFileError):
        open_bundle(bundle, KEY.public)


def test_a_folder_that_is_a_link_is_refused(bundle: Path, tmp_path: Path) -> None:
    (bundle / "graphs").rename(tmp_path / "moved")
    (bundle / "graphs").symlink_to(tmp_path / "moved")
    with pytest.raises(UnlistedFileError):
        open_bundle(bundle, KEY.public)


def test_a_signed_but_malformed_manifest_is_refused(bundle: Path) -> None:
    sign_again(bundle, b"{}")
    with pytest.raises(ManifestError):
        open_bundle(bundle, KEY.public)


def test_a_signed_manifest_without_files_is_refused(bundle: Path) -> None:
    sign_again(bundle, manifest().to_bytes())
    with pytest.raises(ManifestError):
        open_bundle(bundle, KEY.public)


def test_a_huge_manifest_is_not_read(bundle: Path) -> None:
    with (bundle / "manifest.json").open("r+b") as file:
        file.truncate(2 * 1024 * 1024)
    with pytest.raises(BundleFileError, match="too large"):
        open_bundle(bundle, KEY.public)


@pytest.mark.parametrize("path", ["nowhere", "file"])
def test_what_is_no_folder_is_no_bundle(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BundleFileError):
        open_bundle(tmp_path / path, KEY.public)


def test_an_unsafe_graph_is_neither_written_nor_opened(tmp_path: Path) -> None:
    files = {**bundle_files(), "graphs/classify.onnx": ModelParts(operator="Loop").to_bytes()}
    with pytest.raises(UnsafeGraphError):
        write_bundle(tmp_path / "bundle", manifest(), files, KEY)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_is_not_there_is_not_written(tmp_path: Path) -> None:
    for files in ({"README.md": b"x"}, {}):
        with pytest.raises(ManifestError):
            write_bundle(tmp_path / "bundle", manifest(), files, KEY)
    assert list(tmp_path.iterdir()) == []


def test_only_a_bundle_is_replaced_and_only_when_asked(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="holds a bundle"):
        write_bundle(bundle, manifest(), bundle_files(), KEY)
    digest = write_bundle(bundle, replace(manifest(), bundle_version=2), bundle_files(), KEY, overwrite=True)
    assert open_bundle(bundle, KEY.public).digest == digest
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"x")
    with pytest.raises(BundleError, match="no bundle"):
        write_bundle(tmp_path / "photos", manifest(), bundle_files(), KEY, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "photos"]


def test_a_failed_write_changes_nothing(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_bundle(bundle, KEY.public).digest

    def fail(handle: int) -> None:
        raise OSError("disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="disk is full"):
            write_bundle(bundle, replace(manifest(), bundle_version=2), bundle_files(), KEY, overwrite=True)
    assert open_bundle(bundle, KEY.public).digest == before
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    one = write_bundle(tmp_path / "one", manifest(), bundle_files(), KEY)
    two = write_bundle(tmp_path / "two", manifest(), dict(reversed(bundle_files().items())), KEY)
    assert one == two


def test_an_expired_bundle_is_refused() -> None:
    check_expiry(manifest(), 4e9)
    check_expiry(replace(manifest(), expires=2_000_000_000), 1.9e9)
    with pytest.raises(IncompatibleVersionError, match="expired"):
        check_expiry(replace(manifest(), expires=2_000_000_000), 2.1e9)


def test_an_absent_entry_point_is_named(bundle: Path) -> None:
    opened = open_bundle(bundle, KEY.public)
    assert opened.graph("classify") == bundle_files()["graphs/classify.onnx"]
    with pytest.raises(BundleError, match="classify"):
        opened.graph("embed")
