"""SQLite files that survive a kill at any moment and a power cut: write-ahead log, synchronous FULL."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import InputError
from protocol.files import sync_folder

BUSY_SECONDS = 10.0
SCHEMA_VERSION = 1


class DatabaseFileError(InputError):
    """A database file cannot be opened, is damaged, was made by a later version, or is in use."""


def open_database(path: Path, schema: str, *, exclusive: bool = False) -> sqlite3.Connection:
    """Return a connection in autocommit mode, so that only ``transaction`` makes a transaction.

    Args:
        path: The file; made when absent, with its folder.
        schema: Statements ``CREATE TABLE IF NOT EXISTS ...`` and the like.
        exclusive: Whether no other process may open it meanwhile, not even to read.

    Raises:
        DatabaseFileError: See the class.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise DatabaseFileError(f"{path} cannot be opened", got=str(error)) from error
    try:
        _prepare(connection, path, schema, exclusive)
    except sqlite3.Error as error:
        connection.close()
        raise DatabaseFileError(f"{path} cannot be used", got=str(error), hint="move it away if it is damaged") from error
    except DatabaseFileError:
        connection.close()
        raise
    sync_folder(path.parent)  # the names of the new files
    return connection


def _prepare(connection: sqlite3.Connection, path: Path, schema: str, exclusive: bool) -> None:
    """Choose how the file is written, and make its tables."""
    if exclusive:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, SCHEMA_VERSION):
        raise DatabaseFileError(f"{path} was made by another version", expected=SCHEMA_VERSION, got=version, hint="update this side")
    with transaction(connection):
        for statement in filter(None, map(str.strip, schema.split(";"))):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Make everything in the block durable at its end, or nothing of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
