"""A message is judged once, whatever comes twice and whoever restarts; its answer stays the same."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.database import open_database, transaction
from protocol.errors import StaleMessageError
from protocol.freshness import WINDOW
from protocol.inbox import SCHEMA, Inbox
from protocol.messages import Receipt


def receipt(sequence: int, boot: int = 1, sender: str = "pi-1") -> Receipt:
    return Receipt(sender, boot, sequence, accepted=False, reason=f"reason {sequence}", code="late")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(open_database(tmp_path / "journal.db", SCHEMA)) as connection:
        yield connection


def test_an_answer_is_found_again_after_a_restart(database: sqlite3.Connection, tmp_path: Path) -> None:
    with transaction(database):
        Inbox(database).record(receipt(5))
        Inbox(database).record(Receipt("pi-1", 1, 6, accepted=True, reason=""))
    database.close()
    with contextlib.closing(open_database(tmp_path / "journal.db", SCHEMA)) as later:
        inbox = Inbox(later)
        assert inbox.find("pi-1", 1, 5) == receipt(5)
        assert inbox.find("pi-1", 1, 6) == Receipt("pi-1", 1, 6, accepted=True, reason="")
        assert inbox.find("pi-1", 1, 4) is None
        assert inbox.find("pi-2", 1, 5) is None


def test_what_was_not_committed_was_not_answered(database: sqlite3.Connection) -> None:
    inbox = Inbox(database)
    with pytest.raises(sqlite3.IntegrityError), transaction(database):
        list(map(inbox.record, map(receipt, (5, 6, 6))))
    assert inbox.find("pi-1", 1, 5) is None


def test_a_message_is_never_recorded_twice(database: sqlite3.Connection) -> None:
    inbox = Inbox(database)
    inbox.record(receipt(5))
    with pytest.raises(sqlite3.IntegrityError):
        inbox.record(receipt(5))


def test_a_later_boot_begins_anew_and_an_earlier_one_is_stale(database: sqlite3.Connection) -> None:
    inbox = Inbox(database)
    inbox.record(receipt(5))
    inbox.record(receipt(1, boot=2))
    assert inbox.find("pi-1", 2, 5) is None
    with pytest.raises(StaleMessageError, match="earlier boot"):
        inbox.find("pi-1", 1, 5)
    with pytest.raises(StaleMessageError, match="earlier boot"):
        inbox.record(receipt(9))


def test_beyond_the_window_nobody_can_tell(database: sqlite3.Connection) -> None:
    inbox = Inbox(database)
    inbox.record(receipt(3))
    inbox.record(receipt(WINDOW + 2))
    assert inbox.find("pi-1", 1, 3) == receipt(3)
    inbox.record(receipt(WINDOW + 3))
    for sequence in (0, 3):
        with pytest.raises(StaleMessageError, match="too old"):
            inbox.find("pi-1", 1, sequence)
    assert inbox.find("pi-1", 1, 4) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 3000)), max_size=40))
def test_no_message_is_ever_new_twice_and_the_table_is_bounded(attempts: list[tuple[str, int, int]]) -> None:
    database = sqlite3.connect(":memory:", isolation_level=None)
    for statement in SCHEMA.split(";"):
        database.execute(statement)
    inbox, judged = Inbox(database), set[tuple[str, int, int]]()
    for sender, boot, sequence in attempts:
        try:
            known = inbox.find(sender, boot, sequence)
        except StaleMessageError:
            continue
        if known is None:
            assert (sender, boot, sequence) not in judged
            judged.add((sender, boot, sequence))
            inbox.record(receipt(sequence, boot, sender))
        else:
            assert known == receipt(sequence, boot, sender)
    spans = database.execute("SELECT max(sequence) - min(sequence) FROM inbox_answers GROUP BY sender").fetchall()
    assert all(span < WINDOW for (span,) in spans)
    database.close()
