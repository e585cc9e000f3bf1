"""Messages that must arrive, on disk until their receipt came.

Every number is used once, whatever crashes: a message and its number become durable together, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from protocol.database import open_database, transaction
from protocol.errors import TransportError

SCHEMA = """
CREATE TABLE IF NOT EXISTS sender (one INTEGER PRIMARY KEY CHECK (one = 0), boot INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS messages (
    sequence INTEGER PRIMARY KEY, peer TEXT NOT NULL, kind TEXT NOT NULL, payload BLOB NOT NULL, expires REAL NOT NULL,
    droppable INTEGER NOT NULL
)
"""
MOST_MESSAGES = 512
MOST_BYTES = 256 * 1024 * 1024
SPAN = 1000  # nothing is sent this far above the oldest that waits for the same peer: its window is 1024 numbers wide


class OutboxFullError(TransportError):
    """Nothing in the outbox may be dropped, and there is no room for another message."""


@dataclass(frozen=True, order=True)
class Place:
    """What names a message of a sender for ever.

    Attributes:
        boot: Boot counter of the process that made the outbox; it stays while the outbox does.
        sequence: Grows by one with every message, over restarts.
    """

    boot: int
    sequence: int


@dataclass(frozen=True)
class Waiting:
    """A message that waits for its receipt; its bytes stay on disk.

    Attributes:
        place: Its name.
        peer: Who it is for.
        kind: Kind of the message.
        size: Bytes of its payload.
        expires: Seconds since 1970, UTC; it is dropped then.
        droppable: Whether it may be dropped when room is needed, as a later report says the same better.
    """

    place: Place
    peer: str
    kind: str
    size: int
    expires: float
    droppable: bool


@dataclass(frozen=True)
class Draft:
    """A message before it has a name.

    Attributes:
        seal: Gives the payload for a place; called once, before anything is written.
        peer: Who it is for.
        kind: Kind of the message.
    """

    seal: Callable[[Place], bytes]
    peer: str
    kind: str


class Outbox:
    """A durable queue of sealed messages.

    Args:
        path: SQLite file; made when absent.
        boot: Boot counter of this process, for a new outbox; one that exists keeps its own.
        most_messages: Bound of the count.
        most_bytes: Bound of the bytes.

    Raises:
        DatabaseFileError: The file is damaged or in use.
    """

    def __init__(self, path: Path, boot: int, most_messages: int = MOST_MESSAGES, most_bytes: int = MOST_BYTES) -> None:
        self._most_messages = most_messages
        self._most_bytes = most_bytes
        self._database = open_database(path, SCHEMA, exclusive=True)
        with transaction(self._database):
            self._database.execute("INSERT OR IGNORE INTO sender VALUES (0, ?, 0)", (boot,))
        self.boot: int = self._database.execute("SELECT boot FROM sender").fetchone()[0]
        rows = self._database.execute("SELECT sequence, peer, kind, length(payload), expires, droppable FROM messages ORDER BY sequence")
        self._waiting = {row[0]: self._waiting_of(*row) for row in rows}

    def put(self, seal: Callable[[Place], bytes], *, peer: str, kind: str, expires: float, droppable: bool = False) -> Place:
        """Make a message durable under the next number.

        Args:
            seal: Gives the payload for a place; called once, before anything is written.
            peer: Who it is for.
            kind: Kind of the message.
            expires: Seconds since 1970, UTC.
            droppable: Whether it may be dropped when room is needed.

        Raises:
            OutboxFullError: There is no room.
        """
        return self.put_all([Draft(seal, peer, kind)], expires=expires, droppable=droppable)[0]

    def put_all(self, drafts: Sequence[Draft], *, expires: float, droppable: bool = False) -> list[Place]:
        """Make messages durable under the next numbers, in one transaction: all of them, or none.

        Raises:
            OutboxFullError: There is no room for all.
        """
        with transaction(self._database):
            last: int = self._database.execute("SELECT last FROM sender").fetchone()[0]
            places = [Place(self.boot, last + number) for number in range(1, len(drafts) + 1)]
            payloads = [draft.seal(place) for draft, place in zip(drafts, places, strict=True)]
            dropped = self._make_room(len(payloads), sum(map(len, payloads)))
            rows = [
                (place.sequence, draft.peer, draft.kind, payload, expires, droppable)
                for draft, place, payload in zip(drafts, places, payloads, strict=True)
            ]
            self._database.execute("UPDATE sender SET last = ?", (last + len(rows),))
            self._database.executemany("DELETE FROM messages WHERE sequence = ?", [(number,) for number in dropped])
            self._database.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?)", rows)
        for number in dropped:
            del self._waiting[number]
        for sequence, peer, kind, payload, *_ in rows:
            self._waiting[sequence] = self._waiting_of(sequence, peer, kind, len(payload), expires, droppable)
        return places

    def pending(self, now: float) -> list[Waiting]:
        """Return what may be sent, the oldest first: not expired, and not too far above its peer's oldest for the peer's window."""
        waiting = [entry for entry in self._waiting.values() if entry.expires > now]
        oldest: dict[str, int] = {}
        for entry in waiting:
            oldest.setdefault(entry.peer, entry.place.sequence)
        return [entry for entry in waiting if entry.place.sequence < oldest[entry.peer] + SPAN]

    def expired(self, now: float) -> list[Waiting]:
        """Return what waits in vain; ``settle`` forgets it."""
        return [entry for entry in self._waiting.values() if entry.expires <= now]

    def find(self, place: Place) -> Waiting | None:
        """Return a waiting message, or None when it does not wait."""
        return self._waiting.get(place.sequence) if place.boot == self.boot else None

    def payload(self, place: Place) -> bytes:
        """Return the bytes of a waiting message.

        Raises:
            KeyError: It does not wait.
        """
        row = self._database.execute("SELECT payload FROM messages WHERE sequence = ?", (place.sequence,)).fetchone()
        if row is None or place.boot != self.boot:
            raise KeyError(place)
        return bytes(row[0])

    def settle(self, place: Place) -> Waiting | None:
        """Forget a message that was answered or has expired; return it, or None when it was not waiting."""
        if self.find(place) is None:
            return None
        with transaction(self._database):
            self._database.execute("DELETE FROM messages WHERE sequence = ?", (place.sequence,))
        return self._waiting.pop(place.sequence)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __len__(self) -> int:
        """Return how many messages wait."""
        return len(self._waiting)

    def _make_room(self, more: int, size: int) -> list[int]:
        """Return the numbers of droppable messages that must go for more of a size together, the oldest first."""
        count, total = len(self._waiting) + more, sum(entry.size for entry in self._waiting.values()) + size
        dropped = []
        for number, entry in self._waiting.items():
            if count <= self._most_messages and total <= self._most_bytes:
                break
            if entry.droppable:
                dropped.append(number)
                count, total = count - 1, total - entry.size
        if count > self._most_messages or total > self._most_bytes:
            limit = f"at most {self._most_messages} messages and {self._most_bytes} bytes"
            hint = "wait until the receiver answers"
            raise OutboxFullError("the outbox is full", expected=limit, got=f"{count} messages, {total} bytes", hint=hint)
        return dropped

    def _waiting_of(self, sequence: int, peer: str, kind: str, size: int, expires: float, droppable: bool) -> Waiting:
        """Return what is known of a row."""
        return Waiting(Place(self.boot, sequence), peer, kind, size, expires, bool(droppable))
