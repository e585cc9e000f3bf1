"""The receiving side of a transfer, without I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.backoff import Backoff
from protocol.message_checks import ReasonCode
from protocol.transfer_actions import Action, Ended, Finish, Say, Verify, Write
from protocol.transfer_layout import BLOCK_BYTES, block_count, group_bytes, group_count
from protocol.transfer_messages import WANT_CHUNKS, Cancel, Done, Fail, Offer, Want
from protocol.transfer_pace import Pace

MOST_BAD_GROUPS = 3
GRACE_SECONDS = 0.25
OFFER_SECONDS = 0.5


@dataclass
class TransferReceiver:
    """Asks for what it lacks until every group has its digest.

    Args:
        offer: What is offered.
        deadline: When to give up, on the clock of ``now``.
        stored: Groups that the store has and has verified, from an earlier life.
        pace: How much is asked for at once, and how slow is too slow.
        backoff: Waits before asking again.
    """

    offer: Offer
    deadline: float
    stored: Iterable[int] = ()
    pace: Pace = field(default_factory=Pace)
    backoff: Backoff = field(default_factory=Backoff)
    _asked: set[int] = field(default_factory=set)  # chunk indices
    _bad: int = 0
    _due: float = 0.0
    _ended: bool = False

    def __post_init__(self) -> None:
        """Note which blocks are there."""
        self._have: NDArray[np.bool_] = np.zeros(block_count(self.offer.size), np.bool_)
        self._verified = set(self.stored)
        for group in self._verified:
            self._have[self._blocks_of(group)] = True

    def start(self, now: float) -> list[Action]:
        """Ask for the first chunks."""
        self.pace.start(now)
        return self._go_on(now)

    def offered(self, offer: Offer, now: float) -> list[Action]:
        """Take the offer again: its sender has restarted, got no answer, or must use smaller chunks."""
        if self._ended:
            return []
        if (offer.transfer, offer.size) != (self.offer.transfer, self.offer.size) or not np.array_equal(offer.groups, self.offer.groups):
            return self._fail(Ended("malformed", "another transfer of the same name, or the same one with another size or other digests"))
        if offer.chunk_bytes == self.offer.chunk_bytes:  # what is on its way may still come: ask again only after a while
            self._due = min(self._due, now + self.pace.patience(OFFER_SECONDS))
            return []
        self.offer = offer
        self._asked.clear()
        return self._go_on(now)

    def chunk(self, offset: int, data: bytes, now: float) -> list[Action]:
        """Take a chunk; one that is not needed changes nothing."""
        end = offset + len(data)
        first, last = offset // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        size = group_bytes(self.offer.size)
        fits = offset % BLOCK_BYTES == 0 and offset < end <= self.offer.size and (end % BLOCK_BYTES == 0 or end == self.offer.size)
        if self._ended or not fits or offset // size != (end - 1) // size or self._have[first:last].all():
            return []
        self._have[first:last] = True
        self._asked = {chunk for chunk in self._asked if not self._is_complete(chunk)}
        self.backoff.succeeded()
        self.pace.progressed(len(data), now)
        self._due = now + self.pace.patience(self.backoff.wait())
        self.backoff.succeeded()
        group = offset // size
        write: list[Action] = [Write(offset, data)]
        if self._have[self._blocks_of(group)].all():
            return [*write, Verify(group)]  # ``verified`` goes on
        return write + self._ask(now)

    def verified(self, group: int, good: bool, now: float) -> list[Action]:
        """Take the verdict on a group."""
        if self._ended:
            return []
        if good:
            self._verified.add(group)
            return self._go_on(now)
        self._bad += 1
        if self._bad >= MOST_BAD_GROUPS:
            return self._fail(Ended("bad-digest", f"{MOST_BAD_GROUPS} groups did not have the digests of the offer"))
        self._have[self._blocks_of(group)] = False
        return self._go_on(now)

    def finished(self, good: bool) -> list[Action]:
        """Take the verdict on the whole."""
        if self._ended:
            return []
        if not good:
            return self._fail(Ended("bad-digest", "the whole does not have the digest that is its name"))
        self._ended = True
        return [Say(Done(self.offer.transfer)), Ended("accepted")]

    def hear(self, message: Fail | Cancel) -> list[Action]:
        """Take the sender's farewell."""
        if self._ended:
            return []
        self._ended = True
        return [Ended(message.code, message.reason) if isinstance(message, Fail) else Ended("cancelled", message.reason)]

    def tick(self, now: float) -> list[Action]:
        """Ask again for what did not come, or give up, when it is time."""
        if self._ended or now < self.due:
            return []
        if now >= self.deadline:
            return self._fail(Ended("expired", "it was not complete in time"))
        if self.pace.is_too_slow(now):
            return self._fail(Ended("too-slow", f"less than {self.pace.minimum_rate:g} bytes a second came"))
        if now >= self._due:
            self._asked.clear()
            return self._ask(now)
        return []

    def give_up(self, code: ReasonCode, reason: str) -> list[Action]:
        """End it for a reason of the driver's."""
        return [] if self._ended else self._fail(Ended(code, reason))

    def restarted(self, now: float) -> None:
        """Ask again soon: the connection was lost; what the broker kept comes first, so that little comes twice."""
        self.backoff.succeeded()
        self._due = min(self._due, now + GRACE_SECONDS)

    @property
    def due(self) -> float:
        """Return when ``tick`` has something to do."""
        return min(self._due, self.deadline, self.pace.due)

    def _go_on(self, now: float) -> list[Action]:
        """Finish, or ask for more."""
        if len(self._verified) == group_count(self.offer.size):
            return [Finish()]
        return self._ask(now)

    def _ask(self, now: float) -> list[Action]:
        """Ask for chunks when half of what may be on its way has come."""
        credit = self.pace.credit(self.offer.chunk_bytes)
        if len(self._asked) > credit // 2:
            return []
        wanted = self._missing(credit - len(self._asked))
        if not wanted:
            return []
        self.pace.asked(now, alone=not self._asked and self.backoff.attempts == 0)
        self._asked |= set(wanted)
        self._due = max(self._due, now + self.pace.patience(self.backoff.wait()))
        return [Say(Want.of_chunks(self.offer.transfer, credit, self.offer.chunk_bytes, wanted))]

    def _missing(self, most: int) -> list[int]:
        """Return the first chunks that are neither here nor asked for."""
        first_block = int(np.argmin(self._have))
        if self._have[first_block]:
            return []
        blocks = self.offer.chunk_bytes // BLOCK_BYTES
        first = first_block // blocks
        part = self._have[first * blocks : (first + WANT_CHUNKS) * blocks]
        padded = np.concatenate([part, np.ones(-len(part) % blocks, np.bool_)])
        lacking = first + np.flatnonzero(~padded.reshape(-1, blocks).all(axis=1))  # (chunks within reach,)
        found = [int(chunk) for chunk in lacking if int(chunk) not in self._asked][:most]
        return [chunk for chunk in found if chunk < found[0] + WANT_CHUNKS]

    def _is_complete(self, chunk: int) -> bool:
        """Tell whether all blocks of a chunk are here."""
        blocks = self.offer.chunk_bytes // BLOCK_BYTES
        return bool(self._have[chunk * blocks : (chunk + 1) * blocks].all())

    def _blocks_of(self, group: int) -> slice:
        """Return where the blocks of a group are."""
        blocks = group_bytes(self.offer.size) // BLOCK_BYTES
        return slice(group * blocks, (group + 1) * blocks)

    def _fail(self, ended: Ended) -> list[Action]:
        """Tell the sender, and end."""
        self._ended = True
        return [Say(Fail(self.offer.transfer, ended.code, ended.reason)), ended]
