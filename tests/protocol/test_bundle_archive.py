"""Packed bundles: the same bytes for the same bundle, and nothing that an archive says is believed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.bundle import open_bundle
from protocol.bundle_archive import LENGTH_BYTES, MAGIC, pack, unpack
from protocol.errors import BundleFileError, FedtailorError
from protocol.trust import open_trusted
from tests.releases import Release


def archive_of(files: object, content: bytes) -> bytes:
    head = json.dumps(files, separators=(",", ":")).encode()
    return MAGIC + len(head).to_bytes(LENGTH_BYTES, "little") + head + content


def test_a_bundle_comes_out_as_it_went_in(release: Release, tmp_path: Path) -> None:
    for name in ("one", "two"):
        pack(release.bundle, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    unpack(tmp_path / "one", tmp_path / "bundle")
    trusted = open_trusted(release.trusted)
    assert open_bundle(tmp_path / "bundle", trusted).digest == open_bundle(release.bundle, trusted).digest
    files = {path.relative_to(release.bundle): path.read_bytes() for path in release.bundle.rglob("*") if path.is_file()}
    assert {
        path.relative_to(tmp_path / "bundle"): path.read_bytes() for path in (tmp_path / "bundle").rglob("*") if path.is_file()
    } == files


@pytest.mark.parametrize(
    ("files", "content"),
    [
        ({"../evil": 1}, b"x"),
        ({"/etc/passwd": 1}, b"x"),
        ({"graphs/../../evil": 1}, b"x"),
        ({"a/b/c": 1}, b"x"),
        ({".hidden": 1}, b"x"),
        ({"graphs/..": 1}, b"x"),
        ({"a\\b": 1}, b"x"),
        ({"a\0b": 1}, b"x"),
        ({"": 1}, b"x"),
        ({"b": 1, "a": 1}, b"xx"),
        ({"a": -1}, b""),
        ({"a": 2**40}, b"x"),
        ({"a": 2}, b"x"),
        ({"a": 1}, b"xx"),
        ({"a": "1"}, b"x"),
        ({"a": True}, b"x"),
        (["a"], b"x"),
        ({f"file-{number:04d}": 0 for number in range(300)}, b""),
    ],
)
def test_what_cannot_be_a_bundle_is_refused_before_anything_is_written(files: object, content: bytes, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_bytes(archive_of(files, content))
    with pytest.raises(BundleFileError):
        unpack(archive, tmp_path / "out" / "bundle")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"FTB1", b"FTB2" + bytes(20), MAGIC + b"\xff" * 4 + b"{}", MAGIC + b"\x02\0\0\0"])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(BundleFileError):
        unpack(tmp_path / "archive", tmp_path / "bundle")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 80), st.integers(0, 255))
def test_any_bytes_end_in_our_errors(noise: bytes, place: int, value: int) -> None:
    whole = bytearray(archive_of({"graphs/a.onnx": 3, "manifest.json": 2}, b"abcde"))
    whole[min(place, len(whole) - 1)] = value
    with tempfile.TemporaryDirectory() as name:
        for number, content in enumerate((bytes(whole), noise, MAGIC + noise, bytes(whole[:place]))):
            archive = Path(name) / f"{number}"
            archive.write_bytes(content)
            try:
                unpack(archive, Path(name) / f"{number}.out")
            except FedtailorError:
                continue
            inside = [path for path in (Path(name) / f"{number}.out").rglob("*") if path.is_file()]
            assert sum(path.stat().st_size for path in inside) <= len(content)
        assert not (Path(name).parent / "evil").exists()
