"""Real processes that are really killed at every write of their database: what was promised before is there afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from protocol.database import open_database
from protocol.inbox import SCHEMA, Inbox
from protocol.outbox import Outbox
from tests.source_tree import ROOT

OUTBOX = """
import sys
from tests.protocol.sqlite_faults import KillingWrites
from pathlib import Path
from protocol.outbox import Outbox
path, at = Path(sys.argv[1]), int(sys.argv[2])
writes = KillingWrites(at)
outbox = Outbox(path, 7)
for number in range(4):
    place = outbox.put(lambda place: b"%d" % place.sequence * 3000, peer="p", kind="k", expires=2e9)
    print("put", place.sequence, flush=True)
    if number == 2:
        print("settling", place.sequence, flush=True)
        outbox.settle(place)
        print("settled", place.sequence, flush=True)
outbox.close()
print("calls", writes.calls, flush=True)
"""
JOURNAL = """
import sys
from tests.protocol.sqlite_faults import KillingWrites
from pathlib import Path
from protocol.database import open_database, transaction
from protocol.inbox import SCHEMA, Inbox
from protocol.messages import Receipt
path, at = Path(sys.argv[1]), int(sys.argv[2])
writes = KillingWrites(at)
database = open_database(path, SCHEMA + "; CREATE TABLE IF NOT EXISTS updates (sequence INTEGER PRIMARY KEY, content BLOB)")
inbox = Inbox(database)
for sequence in range(1, 4):
    if inbox.find("pi-1", 1, sequence) is None:
        with transaction(database):
            database.execute("INSERT INTO updates VALUES (?, ?)", (sequence, bytes(2000)))
            inbox.record(Receipt("pi-1", 1, sequence, accepted=True, reason=""))
    print("answered", sequence, flush=True)
database.close()
print("calls", writes.calls, flush=True)
"""


def start(program: str, path: Path, at: int) -> tuple[int, list[tuple[str, int]]]:
    """Run a program that is killed at a write, and return how it ended and what it had said."""
    command = [sys.executable, "-c", program, str(path), str(at)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    return result.returncode, [(line.split()[0], int(line.split()[1])) for line in result.stdout.splitlines()]


def writes_of(program: str, path: Path) -> int:
    code, said = start(program, path, 0)
    assert code == 0
    assert said[-1][1] > 15
    return said[-1][1]


def points(total: int, thorough: bool) -> range:
    return range(1, total + 1) if thorough else range(2, total + 1, max(1, total // 5))


def check_outbox(path: Path, at: int) -> None:
    code, said = start(OUTBOX, path, at)
    assert code == -signal.SIGKILL
    done = {action: {number for word, number in said if word == action} for action in ("put", "settling", "settled")}
    outbox = Outbox(path, 8)
    waiting = {entry.place.sequence: outbox.payload(entry.place) for entry in outbox.pending(1.0)}
    assert waiting.keys() >= done["put"] - done["settling"]
    assert not waiting.keys() & done["settled"]
    assert len(waiting.keys() - done["put"]) <= 1  # the one that was being put
    assert all(payload == b"%d" % number * 3000 for number, payload in waiting.items())
    place = outbox.put(lambda _: b"", peer="p", kind="k", expires=2e9)
    assert place.sequence > max(waiting.keys() | done["put"], default=0)
    outbox.close()


def test_a_process_that_starts_again_goes_on_where_the_killed_one_was(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    assert start(JOURNAL, path, writes_of(JOURNAL, tmp_path / "count.db") // 2)[0] == -signal.SIGKILL
    assert start(JOURNAL, path, 0)[1][:3] == [("answered", number) for number in range(1, 4)]
    database = open_database(path, SCHEMA)
    assert Counter(row[0] for row in database.execute("SELECT sequence FROM updates")) == Counter(range(1, 4))
    database.close()


def check_journal(path: Path, at: int) -> None:
    code, said = start(JOURNAL, path, at)
    assert code == -signal.SIGKILL
    answered = {number for word, number in said if word == "answered"}
    database = open_database(path, SCHEMA + "; CREATE TABLE IF NOT EXISTS updates (sequence INTEGER PRIMARY KEY, content BLOB)")
    counted = {row[0] for row in database.execute("SELECT sequence FROM updates")}
    assert counted >= answered
    assert len(counted - answered) <= 1  # the one whose answer was on its way out
    assert counted == {number for number in range(1, 4) if Inbox(database).find("pi-1", 1, number) is not None}
    database.close()


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_outbox_keeps_its_word_when_it_is_killed_at_a_write(tmp_path: Path, thorough: bool) -> None:
    for at in points(writes_of(OUTBOX, tmp_path / "count.db"), thorough):
        check_outbox(tmp_path / f"{at}.db", at)


@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_message_counts_exactly_when_it_was_answered(tmp_path: Path, thorough: bool) -> None:
    for at in points(writes_of(JOURNAL, tmp_path / "count.db"), thorough):
        check_journal(tmp_path / f"{at}.db", at)
