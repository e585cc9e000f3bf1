"""Duplicates and replays: boot counters, sequence numbers, and the window that a receiver keeps."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass, field
from pathlib import Path

from protocol.errors import InputError, StaleMessageError
from protocol.files import read_limited, write_atomically

WINDOW = 1024
COUNTER_FILE_BYTES = 32


class DuplicateMessageError(StaleMessageError):
    """The very same message came before; it deserves the same answer, and no second effect."""


@dataclass
class _Sender:
    """What is known of one sender in its present boot."""

    boot: int
    highest: int = -1
    seen: set[int] = field(default_factory=set)


class SequenceGuard:
    """Lets each message of a sender pass once."""

    def __init__(self) -> None:
        self._senders: dict[str, _Sender] = {}

    def admit(self, sender: str, boot: int, sequence: int) -> None:
        """Note a message.

        Raises:
            DuplicateMessageError: It came before.
            StaleMessageError: It is from an earlier boot, or too old to tell.
        """
        known = self._senders.get(sender)
        if known is None or boot > known.boot:
            known = self._senders[sender] = _Sender(boot)
        if boot < known.boot:
            raise StaleMessageError("a message is from an earlier boot of its sender", expected=f"boot {known.boot}", got=f"boot {boot}")
        if sequence in known.seen:
            raise DuplicateMessageError("a message came twice", got=f"{sender}, boot {boot}, sequence {sequence}")
        if sequence <= known.highest - WINDOW:
            raise StaleMessageError("a message is too old", expected=f"a sequence above {known.highest - WINDOW}", got=sequence)
        known.highest = max(known.highest, sequence)
        known.seen = {number for number in known.seen if number > known.highest - WINDOW} | {sequence}


def next_boot(path: Path) -> int:
    """Return a number higher than at every earlier call with this file, noted on disk before it is used.

    Raises:
        InputError: The file does not hold a counter.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes on one state folder must not share a number
        return _count_up(path)


def _count_up(path: Path) -> int:
    """Return the next number and note it."""
    last = 0
    if path.exists():
        content = read_limited(path, COUNTER_FILE_BYTES)
        if not content.strip().isdigit():
            raise InputError(f"{path} holds no boot counter", expected="a number", got=repr(content[:20]), hint="restore it from a backup")
        last = int(content)
    write_atomically(path, f"{last + 1}\n".encode())
    return last + 1
