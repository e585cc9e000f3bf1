"""What an agent must not forget: answers that it gave, tasks that it took, the latest of anything it needs after a restart."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path

from protocol.database import open_database, transaction
from protocol.inbox import SCHEMA as INBOX_SCHEMA
from protocol.inbox import Inbox
from protocol.round_messages import RoundTask
from protocol.schema import SchemaError, decode, encode, parse_json

SCHEMA = f"""{INBOX_SCHEMA};
CREATE TABLE IF NOT EXISTS tasks (
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, task TEXT NOT NULL, deadline REAL NOT NULL, done INTEGER NOT NULL,
    PRIMARY KEY (round, attempt)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID
"""
KEPT_SECONDS = 7 * 86_400.0


class AgentMemory:
    """An agent's database; calls that write belong inside ``transaction``.

    Args:
        path: The SQLite file; made when absent.

    Raises:
        DatabaseFileError: It is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._database = open_database(path, SCHEMA)
        self.inbox = Inbox(self._database)

    def transaction(self) -> AbstractContextManager[None]:
        """Make everything in the block durable at its end, or nothing of it."""
        return transaction(self._database)

    def take(self, task: RoundTask) -> bool:
        """Write a task down; tell whether it is a new one."""
        row = (task.round, task.attempt, json.dumps(encode(task), allow_nan=False), task.deadline)
        written = self._database.execute("INSERT OR IGNORE INTO tasks VALUES (?, ?, ?, ?, 0)", row).rowcount
        self._database.execute("DELETE FROM tasks WHERE deadline < ?", (task.deadline - KEPT_SECONDS,))
        return written == 1

    def finish(self, task: RoundTask) -> None:
        """Note that a task's update waits in the outbox, or that none will come."""
        self._database.execute("UPDATE tasks SET done = 1 WHERE round = ? AND attempt = ?", (task.round, task.attempt))

    def open_tasks(self, now: float) -> list[RoundTask]:
        """Return the tasks that are still to be done, the latest first; what is past its deadline or unreadable is not."""
        rows = self._database.execute("SELECT task FROM tasks WHERE done = 0 AND deadline > ? ORDER BY round DESC, attempt DESC", (now,))
        found = []
        for (text,) in rows.fetchall():
            try:
                found.append(decode(RoundTask, parse_json(text.encode()), "task"))
            except SchemaError:  # of another version of this program
                continue
        return found

    def note(self, name: str, value: str) -> None:
        """Keep a short text under a name."""
        self._database.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, value))

    def noted(self, name: str) -> str | None:
        """Return what is kept under a name, or None."""
        row = self._database.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def close(self) -> None:
        """Close the file."""
        self._database.close()
