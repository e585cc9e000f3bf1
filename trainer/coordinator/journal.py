"""What a coordinator must never forget, in one SQLite file: rounds, who was asked, updates, answers, the operator's wishes.

An update, its number in the duplicate window and its receipt become durable in one transaction, before the receipt is
sent: what was acknowledged is there after any crash, and what is there was counted once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.database import open_database, transaction
from protocol.inbox import SCHEMA as INBOX_SCHEMA
from protocol.inbox import Inbox
from trainer.coordinator.open_round import Asked, OpenRound

SCHEMA = f"""{INBOX_SCHEMA};
CREATE TABLE IF NOT EXISTS rounds (
    number INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, opened REAL NOT NULL, deadline REAL NOT NULL, phase TEXT NOT NULL,
    state TEXT NOT NULL, result TEXT, seconds REAL
);
CREATE TABLE IF NOT EXISTS asked (
    round INTEGER NOT NULL REFERENCES rounds, device TEXT NOT NULL, attempt INTEGER NOT NULL, base TEXT NOT NULL, answer TEXT NOT NULL,
    PRIMARY KEY (round, device)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS updates (
    round INTEGER NOT NULL REFERENCES rounds, device TEXT NOT NULL, boot INTEGER NOT NULL, sequence INTEGER NOT NULL,
    sample_count INTEGER NOT NULL, metrics TEXT NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (round, device), UNIQUE (device, boot, sequence)
);
CREATE TABLE IF NOT EXISTS refusals (code TEXT PRIMARY KEY, count INTEGER NOT NULL, latest TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID
"""
FILE_NAME = "journal.db"
PAUSED, HEARTBEAT, PRESENT = "paused", "heartbeat", "present"


@dataclass(frozen=True, eq=False)
class StoredUpdate:
    """An update that counts.

    Attributes:
        device: Who sent it.
        boot: Boot counter of the message.
        sequence: Its sequence number.
        sample_count: Samples that it stands for.
        metrics: Figures that came with it.
        content: What the exchange keeps of it, bytes.
    """

    device: str
    boot: int
    sequence: int
    sample_count: int
    metrics: Mapping[str, float]
    content: bytes


class Journal:
    """The journal of one run's rounds; calls that write belong inside ``transaction``.

    Args:
        folder: Where the file lies; made when absent.

    Raises:
        DatabaseFileError: The file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._database = open_database(folder / FILE_NAME, SCHEMA)
        self.inbox = Inbox(self._database)

    def transaction(self) -> AbstractContextManager[None]:
        """Make everything in the block durable at its end, or nothing of it."""
        return transaction(self._database)

    def latest_round(self) -> OpenRound | None:
        """Return the round with the highest number, or None before the first."""
        row = self._one("SELECT number FROM rounds ORDER BY number DESC LIMIT 1")
        return None if row is None else self.round(row[0])

    def round(self, number: int) -> OpenRound | None:
        """Return a round, or None when there is none of that number."""
        columns = "number, attempt, opened, deadline, phase, state, result"
        row = self._one(f"SELECT {columns} FROM rounds WHERE number = ?", number)  # noqa: S608  # a constant
        if row is None:
            return None
        asked = self._database.execute("SELECT device, attempt, base, answer FROM asked WHERE round = ? ORDER BY device", (number,))
        counted = self._database.execute("SELECT device, sample_count FROM updates WHERE round = ? ORDER BY device", (number,))
        facts = dict(zip(columns.split(", "), row, strict=True))
        return OpenRound(**facts, asked={name: Asked(*rest) for name, *rest in asked}, counted=dict(counted))

    def save_round(self, current: OpenRound) -> None:
        """Write a round and who was asked; updates are written by ``add_update``."""
        values = (current.number, current.attempt, current.opened, current.deadline, current.phase, current.state, current.result)
        self._database.execute(
            "INSERT INTO rounds (number, attempt, opened, deadline, phase, state, result) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (number) DO UPDATE SET attempt = excluded.attempt, deadline = excluded.deadline, phase = excluded.phase,"
            " result = excluded.result",
            values,
        )
        rows = [(current.number, device, asked.attempt, asked.base, asked.answer) for device, asked in current.asked.items()]
        self._database.executemany("INSERT OR REPLACE INTO asked VALUES (?, ?, ?, ?, ?)", rows)

    def save_answer(self, number: int, device: str, answer: str) -> None:
        """Write what a device said to its task."""
        self._database.execute("UPDATE asked SET answer = ? WHERE round = ? AND device = ?", (answer, number, device))

    def save_seconds(self, number: int, seconds: float) -> None:
        """Write how long a round took."""
        self._database.execute("UPDATE rounds SET seconds = ? WHERE number = ?", (seconds, number))

    def add_update(self, number: int, update: StoredUpdate) -> None:
        """Write an update that counts.

        Raises:
            sqlite3.IntegrityError: The device has one in this round, or the message counts already.
        """
        metrics = json.dumps(dict(update.metrics), sort_keys=True)
        row = (number, update.device, update.boot, update.sequence, update.sample_count, metrics, update.content)
        self._database.execute("INSERT INTO updates VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def updates(self, number: int) -> Iterator[StoredUpdate]:
        """Yield the updates of a round in ascending order of device ids."""
        columns = "device, boot, sequence, sample_count, metrics, content"
        rows = self._database.execute(f"SELECT {columns} FROM updates WHERE round = ? ORDER BY device", (number,))  # noqa: S608
        for device, boot, sequence, samples, metrics, content in rows:
            yield StoredUpdate(device, boot, sequence, samples, json.loads(metrics), bytes(content))

    def drop_contents_before(self, number: int) -> None:
        """Forget the numbers of updates of rounds before one; that they counted stays known."""
        self._database.execute("UPDATE updates SET content = x'' WHERE round < ? AND length(content) > 0", (number,))

    def note_refusal(self, code: str, sentence: str) -> None:
        """Count a refusal."""
        self._database.execute(
            "INSERT INTO refusals VALUES (?, 1, ?) ON CONFLICT (code) DO UPDATE SET count = count + 1, latest = excluded.latest",
            (code, sentence[:300]),
        )

    def refusals(self) -> dict[str, tuple[int, str]]:
        """Return how often each code was given, and the latest sentence of each."""
        return {code: (count, latest) for code, count, latest in self._database.execute("SELECT code, count, latest FROM refusals")}

    def note(self, name: str, value: str) -> None:
        """Keep a short text under a name."""
        self._database.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, value))

    def noted(self, name: str) -> str | None:
        """Return what is kept under a name, or None."""
        row = self._one("SELECT value FROM notes WHERE name = ?", name)
        return None if row is None else str(row[0])

    def history(self) -> list[dict[str, object]]:
        """Return what is known of each round, ascending: number, phase, asked, counted, attempt, seconds, result."""
        query = (
            "SELECT number, phase, attempt, seconds, result, (SELECT count(*) FROM asked WHERE round = number),"
            " (SELECT count(*) FROM updates WHERE round = number) FROM rounds ORDER BY number"
        )
        names = ("round", "phase", "attempt", "seconds", "result", "asked", "counted")
        return [dict(zip(names, row, strict=True)) for row in self._database.execute(query)]

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _one(self, query: str, *values: object) -> tuple[Any, ...] | None:
        """Return the first row of a query."""
        row: tuple[Any, ...] | None = self._database.execute(query, values).fetchone()
        return row


def is_absent(folder: Path) -> bool:
    """Tell whether no coordinator ever held rounds in a folder."""
    return not (folder / FILE_NAME).is_file()
