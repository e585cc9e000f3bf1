"""Which messages were answered already, on disk: the boot counter of each sender, a window of 1024 numbers, the answers.

The inbox lives in the receiver's own database and never commits: what a message did, its number and its receipt become
durable in one transaction, so that it counts exactly once.
"""

from __future__ import annotations

import sqlite3

from protocol.errors import StaleMessageError
from protocol.freshness import WINDOW
from protocol.messages import Receipt

SCHEMA = """
CREATE TABLE IF NOT EXISTS inbox_senders (sender TEXT PRIMARY KEY, boot INTEGER NOT NULL, highest INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS inbox_answers (
    sender TEXT NOT NULL, sequence INTEGER NOT NULL, code TEXT NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (sender, sequence)
) WITHOUT ROWID
"""


class Inbox:
    """A duplicate window of every sender.

    A message that was never recorded stays new, however often it comes: refusals that should last are recorded as well.

    Args:
        database: A database of the caller's that has the tables of ``SCHEMA``; see protocol.database.open_database.
    """

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def find(self, sender: str, boot: int, sequence: int) -> Receipt | None:
        """Return the answer to a message that came before; None for a new one.

        Raises:
            StaleMessageError: From an earlier boot, or so old that nobody can tell.
        """
        known = self._known(sender)
        if known is None or boot > known[0]:
            return None
        newest, highest = known
        if boot < newest:
            raise StaleMessageError("a message is from an earlier boot of its sender", expected=f"boot {newest}", got=f"boot {boot}")
        answers = "SELECT code, reason FROM inbox_answers WHERE sender = ? AND sequence = ?"
        row = self._database.execute(answers, (sender, sequence)).fetchone()
        if row is not None:
            return Receipt(sender, boot, sequence, accepted=row[0] == "accepted", reason=row[1], code=row[0])
        if sequence <= highest - WINDOW:
            raise StaleMessageError("a message is too old", expected=f"a sequence above {highest - WINDOW}", got=sequence)
        return None

    def record(self, receipt: Receipt) -> None:
        """Note the answer to a message; the caller commits.

        Raises:
            StaleMessageError: The message is too old to be noted, or from an earlier boot.
            sqlite3.IntegrityError: It was answered before.
        """
        if self.find(receipt.device, receipt.boot, receipt.sequence) is not None:
            raise sqlite3.IntegrityError(f"{receipt.device}, boot {receipt.boot}, sequence {receipt.sequence} was answered before")
        boot, highest = self._known(receipt.device) or (receipt.boot, -1)
        if receipt.boot > boot:
            highest = -1
            self._database.execute("DELETE FROM inbox_answers WHERE sender = ?", (receipt.device,))
        highest = max(highest, receipt.sequence)
        self._database.execute("INSERT OR REPLACE INTO inbox_senders VALUES (?, ?, ?)", (receipt.device, receipt.boot, highest))
        answer = (receipt.device, receipt.sequence, receipt.code, receipt.reason)
        self._database.execute("INSERT INTO inbox_answers VALUES (?, ?, ?, ?)", answer)
        self._database.execute("DELETE FROM inbox_answers WHERE sender = ? AND sequence <= ?", (receipt.device, highest - WINDOW))

    def _known(self, sender: str) -> tuple[int, int] | None:
        """Return the boot counter and the highest number of a sender."""
        found = self._database.execute("SELECT boot, highest FROM inbox_senders WHERE sender = ?", (sender,)).fetchone()
        return None if found is None else (int(found[0]), int(found[1]))
