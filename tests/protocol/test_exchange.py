"""A bundle is replaced so that a failure or a kill at any rename leaves a whole one, where it was or for the next call to put back."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from protocol import exchange as module
from protocol.bundle import open_bundle, write_bundle
from protocol.keys import PrivateKey
from tests.protocol.forked import run_forked
from tests.protocol.samples import bundle_files, manifest

KEY = PrivateKey(bytes(range(32)))
MOST_RENAMES = 3
PROGRAM = """
import errno, signal
from dataclasses import replace
from protocol import exchange as module
from protocol.bundle import write_bundle
from protocol.keys import PrivateKey
from tests.protocol.samples import bundle_files, manifest

def run(path, at):
    key, count = PrivateKey(bytes(range(32))), 0
    write_bundle(path / "bundle", manifest(), bundle_files(), key)

    def counted(call):
        def counting(*arguments):
            nonlocal count
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
            call(*arguments)
            count += 1
            if count == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return counting

    def cannot(one, other):
        raise OSError(errno.ENOSYS, "cannot")

    Path.rename = counted(Path.rename)
    module.exchange = counted(module.exchange) if EXCHANGES else cannot
    write_bundle(path / "bundle", replace(manifest(), bundle_version=2), bundle_files(), key, overwrite=True)
"""


def versions(folder: Path) -> list[int]:
    """Return the version of the bundle that lies in a folder, if a whole one does."""
    return [open_bundle(folder, KEY.public).manifest.bundle_version] if folder.exists() else []


@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "two renames"])
def test_a_kill_at_any_rename_leaves_a_whole_bundle(tmp_path: Path, *, exchanges: bool) -> None:
    endings = run_forked(f"EXCHANGES = {exchanges}\n{PROGRAM}", tmp_path, range(2 * MOST_RENAMES))
    killed = {ending.at for ending in endings if ending.killed}
    assert killed == ({1, 2} if exchanges else {1, 2, 3, 4})  # before and after each rename
    for ending in endings:
        bundle = tmp_path / str(ending.at) / "bundle"
        if exchanges or ending.at not in (2, 3):
            assert versions(bundle) in ([1], [2])
        else:
            assert versions(bundle) == []  # moved aside
            module.recover_folder(bundle)
            assert versions(bundle) == [1]
        write_bundle(bundle, replace(manifest(), bundle_version=3), bundle_files(), KEY, overwrite=True)
        assert versions(bundle) == [3]
        assert not bundle.with_name(".bundle.aside").exists()


@pytest.mark.parametrize("fault", [errno.EIO, errno.EACCES, errno.EXDEV])
@pytest.mark.parametrize("exchanges", [True, False], ids=["exchanged", "two renames"])
def test_a_rename_that_fails_leaves_the_old_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int, *, exchanges: bool) -> None:
    bundle, rename = tmp_path / "bundle", Path.rename
    write_bundle(bundle, manifest(), bundle_files(), KEY)

    def failing(source: Path, target: Path) -> None:
        if target == bundle and not str(source).endswith(".aside"):
            raise OSError(fault, os.strerror(fault))
        rename(source, target)

    def failing_exchange(one: Path, other: Path) -> None:
        number = fault if exchanges else errno.EINVAL
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "rename", failing)
    monkeypatch.setattr(module, "exchange", failing_exchange)
    with pytest.raises(OSError, match=os.strerror(fault)):
        write_bundle(bundle, replace(manifest(), bundle_version=2), bundle_files(), KEY, overwrite=True)
    assert versions(bundle) == [1]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_names_are_exchanged_and_what_cannot_be_is_said(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    module.exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "other").exists()
    with pytest.raises(OSError, match="No such file"):
        module.exchange(tmp_path / "one", tmp_path / "absent")
