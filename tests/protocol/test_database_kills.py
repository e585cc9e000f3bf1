"""Real processes that are really killed at every write of their database: what was promised before is there afterwards."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from protocol.database import open_database, transaction
from protocol.inbox import SCHEMA, Inbox
from protocol.messages import Receipt
from protocol.outbox import Outbox
from tests.protocol.forked import Ending, run_forked

TABLES = SCHEMA + "; CREATE TABLE IF NOT EXISTS updates (sequence INTEGER PRIMARY KEY, content BLOB)"
OUTBOX = """
from tests.protocol.sqlite_faults import KillingWrites
from protocol.outbox import Outbox
def run(path, at):
    writes = KillingWrites(at)
    outbox = Outbox(path / "outbox.db", 7)
    for number in range(4):
        place = outbox.put(lambda place: b"%d" % place.sequence * 3000, peer="p", kind="k", expires=2e9)
        print("put", place.sequence, flush=True)
        if number == 2:
            print("settling", place.sequence, flush=True)
            outbox.settle(place)
            print("settled", place.sequence, flush=True)
    outbox.close()
    print("calls", writes.calls)
"""
JOURNAL = """
from tests.protocol.sqlite_faults import KillingWrites
from tests.protocol.test_database_kills import judge_three
def run(path, at):
    writes = KillingWrites(at)
    judge_three(path, lambda sequence: print("answered", sequence, flush=True))
    print("calls", writes.calls)
"""


def judge_three(path: Path, tell: object = None) -> set[int]:
    """Count three messages as a coordinator does, going on where an earlier process was, and return which are counted."""
    with contextlib.closing(open_database(path / "journal.db", TABLES)) as database:
        inbox = Inbox(database)
        for sequence in range(1, 4):
            if inbox.find("pi-1", 1, sequence) is None:
                with transaction(database):
                    database.execute("INSERT INTO updates VALUES (?, ?)", (sequence, bytes(2000)))
                    inbox.record(Receipt("pi-1", 1, sequence, accepted=True, reason=""))
            if callable(tell):
                tell(sequence)
        return {row[0] for row in database.execute("SELECT sequence FROM updates")}


def points(program: str, folder: Path, thorough: bool) -> list[int]:
    """Return the writes at which to kill: all of them, or a few."""
    (whole,) = run_forked(program, folder, [0])
    assert not whole.killed
    (total,) = whole.numbers("calls")
    assert total > 15
    return list(range(1, total + 1, 1 if thorough else total // 6))


def check_outbox(ending: Ending, path: Path) -> None:
    put, settling, settled = ending.numbers("put"), ending.numbers("settling"), ending.numbers("settled")
    outbox = Outbox(path / "outbox.db", 8)
    waiting = {entry.place.sequence: outbox.payload(entry.place) for entry in outbox.pending(1.0)}
    assert waiting.keys() >= put - settling
    assert not waiting.keys() & settled
    assert len(waiting.keys() - put) <= 1  # the one that was being put
    assert all(payload == b"%d" % number * 3000 for number, payload in waiting.items())
    place = outbox.put(lambda _: b"", peer="p", kind="k", expires=2e9)
    assert place.sequence > max(waiting.keys() | put, default=0)
    outbox.close()


def check_journal(ending: Ending, path: Path) -> None:
    answered = ending.numbers("answered")
    with contextlib.closing(open_database(path / "journal.db", TABLES)) as database:
        counted = {row[0] for row in database.execute("SELECT sequence FROM updates")}
        assert counted >= answered
        assert len(counted - answered) <= 1  # the one whose answer was on its way out
        assert counted == {number for number in range(1, 4) if Inbox(database).find("pi-1", 1, number) is not None}
    assert judge_three(path) == {1, 2, 3}  # the next process goes on where this one was


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_outbox_keeps_its_word_when_it_is_killed_at_a_write(tmp_path: Path, thorough: bool) -> None:
    for ending in run_forked(OUTBOX, tmp_path, points(OUTBOX, tmp_path, thorough)):
        assert ending.killed
        check_outbox(ending, tmp_path / str(ending.at))


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_message_counts_exactly_when_it_was_answered(tmp_path: Path, thorough: bool) -> None:
    for ending in run_forked(JOURNAL, tmp_path, points(JOURNAL, tmp_path, thorough)):
        assert ending.killed
        check_journal(ending, tmp_path / str(ending.at))
