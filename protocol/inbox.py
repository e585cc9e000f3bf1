"""Which messages were answered already, on disk: the highest boot counter of each sender, a window of 1024 numbers, the answers.

The inbox lives in the receiver's own database and never commits: what a message did, its number and its receipt become
durable in one transaction, so that it counts exactly once.
"""

from __future__ import annotations

import sqlite3

from protocol.messages import Receipt


class Inbox:
    """A duplicate window of every sender.

    Args:
        connection: A database of the caller's; the tables are made when absent. See protocol.database.open_database.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        raise NotImplementedError

    def find(self, sender: str, boot: int, sequence: int) -> Receipt | None:
        """Return the answer to a message that came before; None for a new one.

        Raises:
            StaleMessageError: From an earlier boot, or so old that nobody can tell.
        """
        raise NotImplementedError

    def record(self, receipt: Receipt) -> None:
        """Note the answer to a message; the caller commits."""
        raise NotImplementedError
