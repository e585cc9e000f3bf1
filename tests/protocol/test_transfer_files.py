"""Content grows on disk through crashes, power cuts, full disks and kills, and in the end it is the right content or absent."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import InputError
from protocol.messages import Offer
from protocol.transfer_files import FileStore, MemoryStore, find_whole, stored_bytes, sweep
from protocol.transfer_source import BytesSource, FileSource, offer_of
from tests.edge_runtime.faults import FaultyDisk, SimulatedCrashError
from tests.fuzz.machines import GROUP, small_groups
from tests.protocol.forked import run_forked

CONTENT = np.random.default_rng(5).bytes(3 * GROUP + 100)
PROGRAM = """
import pytest
from tests.edge_runtime.faults import FaultyDisk
from tests.fuzz.machines import small_groups
from tests.protocol.test_transfer_files import complete, offer
small_groups(pytest.MonkeyPatch())
wanted = offer()
def run(folder, at):
    with FaultyDisk(at, "kill") as disk:
        complete(folder, wanted, lambda group: print("group", group, flush=True))
    print("calls", disk.calls)
"""


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    small_groups(monkeypatch)


@pytest.fixture
def memory() -> Iterator[Path]:
    place = Path("/dev/shm")  # noqa: S108  # a fresh folder is made in it
    with tempfile.TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None) as folder:
        yield Path(folder)


def offer(content: bytes = CONTENT) -> Offer:
    return offer_of(BytesSource(content), "bundle", chunk_bytes=512, round_number=None, expires=2e9)


def complete(folder: Path, wanted: Offer, tell: object = None) -> Path:
    """Write what the store lacks, as a receiver would."""
    store = FileStore(folder, wanted)
    try:
        for group in sorted(set(range(4)) - store.stored):
            for offset in range(group * GROUP, min((group + 1) * GROUP, wanted.size), 512):
                store.write(offset, CONTENT[offset : min(offset + 512, (group + 1) * GROUP)])
            assert store.verify(group)
            if callable(tell):
                tell(group)
        found = store.finish()
        assert found is not None
        return found
    finally:
        store.close()


def check(folder: Path) -> None:
    """Whatever happened, nothing wrong is in the place of the whole, and the rest can be had."""
    wanted = offer()
    whole = folder / wanted.transfer
    assert not whole.exists() or whole.read_bytes() == CONTENT
    found = find_whole(folder, wanted.transfer) or complete(folder, wanted)
    assert found.read_bytes() == CONTENT
    assert find_whole(folder, wanted.transfer) == found
    assert {path.name.split(".")[0] for path in folder.iterdir() if not path.name.startswith(".")} == {wanted.transfer}


def test_content_grows_group_by_group(tmp_path: Path) -> None:
    wanted = offer()
    store = FileStore(tmp_path, wanted)
    store.write(0, CONTENT[:GROUP])
    assert store.verify(0)
    store.write(GROUP, b"wrong" * 3)
    assert not store.verify(1)
    store.close()
    assert FileStore(tmp_path, wanted).stored == {0}
    check(tmp_path)


def test_an_altered_part_is_found_out(tmp_path: Path) -> None:
    wanted = offer()
    store = FileStore(tmp_path, wanted)
    for group in range(2):
        store.write(group * GROUP, CONTENT[group * GROUP : (group + 1) * GROUP])
        assert store.verify(group)
    store.close()
    with (tmp_path / f"{wanted.transfer}.part").open("r+b") as file:
        file.seek(GROUP + 5)
        file.write(b"\0\0\0\0\0\0")
    assert FileStore(tmp_path, wanted).stored == {0}
    check(tmp_path)


@pytest.mark.parametrize(
    "note", [b"", b"{", b"[]", b'{"size":1,"expires":1,"groups":[0]}', b'{"size":6244,"expires":1,"groups":[-1,99,1]}']
)
def test_a_note_is_not_believed(tmp_path: Path, note: bytes) -> None:
    wanted = offer()
    (tmp_path / f"{wanted.transfer}.json").write_bytes(note)
    assert FileStore(tmp_path, wanted).stored == set()
    check(tmp_path)


def test_a_whole_that_was_damaged_is_fetched_again(tmp_path: Path) -> None:
    path = complete(tmp_path, offer())
    path.write_bytes(CONTENT[:-1] + b"\0")
    assert find_whole(tmp_path, path.name) is None
    check(tmp_path)


def test_a_name_that_lies_is_found_out_at_the_end(tmp_path: Path) -> None:
    """The groups are those of the offer, but the whole is not what the transfer is called."""
    true = offer()
    lie = Offer("0" * 64, true.size, 512, "bundle", None, 2e9, true.groups)
    store = FileStore(tmp_path, lie)
    store.write(0, CONTENT)
    assert all(store.verify(group) for group in range(4))
    assert store.finish() is None
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_place_of_the_part_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / f"{offer().transfer}.part").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        FileStore(tmp_path, offer())
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_unfinished_content_goes_when_nobody_will_complete_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path, offer())
    store.write(0, CONTENT[:GROUP])
    store.verify(0)
    store.close()
    assert stored_bytes(tmp_path) > len(CONTENT)
    sweep(tmp_path, 2e9 - 1)
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "orphan.part").write_bytes(b"")
    sweep(tmp_path, 2e9 + 1)
    assert stored_bytes(tmp_path) == 0


def test_memory_holds_small_content() -> None:
    store = MemoryStore(offer())
    store.write(0, CONTENT[:GROUP] + b"?")
    assert store.verify(0)
    assert not store.verify(1)
    assert store.finish() is None
    store.write(GROUP, CONTENT[GROUP:])
    assert all(store.verify(group) for group in range(4))
    assert store.finish() == CONTENT


@pytest.mark.parametrize("power", ["stays", "is cut"])
def test_a_crash_at_every_call_costs_at_most_a_group(memory: Path, power: str) -> None:
    wanted = offer()
    with FaultyDisk() as disk:
        complete(memory / "count", wanted)
    assert {"open", "pwrite", "fsync", "replace", "posix_fallocate", "write"} <= disk.kinds.keys()
    for at in range(1, disk.calls + 1):
        folder, done = memory / "content", set[int]()
        shutil.rmtree(folder, ignore_errors=True)
        broken = FaultyDisk(at)
        with broken, pytest.raises(SimulatedCrashError):
            complete(folder, wanted, done.add)
        if power == "is cut":
            broken.cut_power()
        elif folder.exists() and not (folder / wanted.transfer).exists():
            store = FileStore(folder, wanted)
            assert done - {3} <= store.stored
            store.close()
        folder.mkdir(exist_ok=True)
        check(folder)


@pytest.mark.parametrize("way", ["error", "full"])
def test_a_disk_that_refuses_is_told_and_leaves_nothing_wrong(memory: Path, way: str) -> None:
    wanted = offer()
    with FaultyDisk() as disk:
        complete(memory / "count", wanted)
    told = 0
    for at in range(1, disk.calls + 1):
        folder = memory / "content"
        shutil.rmtree(folder, ignore_errors=True)
        with FaultyDisk(at, way):
            try:
                complete(folder, wanted)
            except OSError:
                told += 1
        folder.mkdir(exist_ok=True)
        check(folder)
    assert told > disk.calls // 2


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_process_killed_at_a_call_costs_at_most_a_group(memory: Path, thorough: bool) -> None:
    (total,) = run_forked(PROGRAM, memory, [0])[0].numbers("calls")
    for ending in run_forked(PROGRAM, memory, range(1, total + 1, 1 if thorough else total // 6)):
        assert ending.killed
        folder = memory / str(ending.at)
        if folder.exists() and not (folder / offer().transfer).exists():
            store = FileStore(folder, offer())
            assert ending.numbers("group") - {3} <= store.stored
            store.close()
        folder.mkdir(exist_ok=True)
        check(folder)


def test_a_file_is_served_by_its_digest_and_must_not_change(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(CONTENT)
    source = FileSource(tmp_path / "bundle")
    assert source.transfer == BytesSource(CONTENT).transfer
    np.testing.assert_array_equal(source.groups, BytesSource(CONTENT).groups)
    assert source.read(3 * GROUP, 4096) == CONTENT[3 * GROUP :]
    (tmp_path / "bundle").write_bytes(CONTENT[::-1])
    with pytest.raises(InputError, match="changed"):
        source.read(0, 1)
    (tmp_path / "bundle").unlink()
    with pytest.raises(InputError, match="read"):
        source.read(0, 1)


@pytest.mark.parametrize("content", [b"", None])
def test_nothing_cannot_be_served(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "bundle").write_bytes(content)
    with pytest.raises(InputError):
        FileSource(tmp_path / "bundle")
