"""Files are written whole or not at all, and read only when plain and small enough."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from protocol.errors import BundleFileError, InputError
from protocol.files import read_limited, write_atomically


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"old")
    write_atomically(path, b"new", 0o600)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_content_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"old")

    def fail(handle: int) -> None:
        raise OSError("disk is full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk is full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_up_to_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_limited(tmp_path / "file", 5) == b"12345"
    with pytest.raises(InputError, match="at most 4 bytes"):
        read_limited(tmp_path / "file", 4)


@pytest.mark.parametrize("kind", ["missing", "folder", "link", "pipe"])
def test_only_plain_files_are_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleFileError, match="plain file"):
        read_limited(tmp_path / kind, 100, BundleFileError)
