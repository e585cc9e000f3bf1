"""All incoming transfers of one side: machines, stores and quotas together; messages and content come out."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from protocol.backoff import Backoff
from protocol.chunk_frame import ChunkFrame, short_name
from protocol.message_checks import ReasonCode
from protocol.transfer_actions import Action, Ended, Finish, Say, Verify, Write
from protocol.transfer_files import ContentStore, FileStore, MemoryStore, find_whole, remove_transfer, stored_bytes, sweep
from protocol.transfer_limits import Quota, TransferLimits
from protocol.transfer_messages import Cancel, Done, Fail, Media, Offer, TransferMessage
from protocol.transfer_pace import Pace
from protocol.transfer_receiver import TransferReceiver

MESSAGES, CONTENT = "messages", "content"


def content_folder(folder: Path, peer: str, media: Media) -> Path:
    """Return where content of a peer is put together."""
    return folder / peer / (MESSAGES if media == "message" else CONTENT)


@dataclass(frozen=True)
class Outgoing:
    """A message for a peer."""

    peer: str
    message: TransferMessage


@dataclass(frozen=True)
class Arrived:
    """Content that is complete and verified, in memory or in a file."""

    peer: str
    offer: Offer
    content: bytes | Path


@dataclass(frozen=True)
class Broken:
    """Content that will not come."""

    peer: str
    offer: Offer
    code: ReasonCode
    reason: str


Output: TypeAlias = Outgoing | Arrived | Broken


@dataclass
class _Session:
    """One incoming transfer."""

    peer: str
    machine: TransferReceiver
    store: ContentStore


@dataclass
class Inflow:
    """Incoming transfers.

    Args:
        folder: Where content is put together, one folder for each peer in it.
        limits: What a peer may make this side keep.
        draw: Random numbers from 0 to 1, for the waits.
    """

    folder: Path
    limits: TransferLimits = field(default_factory=TransferLimits)
    draw: Callable[[], float] = random.random
    _sessions: dict[tuple[str, bytes], _Session] = field(default_factory=dict)
    _quotas: dict[str, Quota] = field(default_factory=dict)

    def offered(self, peer: str, offer: Offer, now: float, deadline: float) -> list[Output]:
        """Take on an offer, go on with one that is open, or say why not.

        Args:
            peer: Who offers; a name that may stand in a topic, so in a path too.
            offer: What is offered.
            now: Time on a clock that never goes back.
            deadline: When to give up, on the same clock.
        """
        key = (peer, short_name(offer.transfer))
        if key in self._sessions:
            return self._do(key, self._sessions[key].machine.offered(offer, now), now)
        folder = content_folder(self.folder, peer, offer.media)
        try:
            whole = find_whole(folder, offer.transfer)
            if whole is not None:
                return [*_done(peer, offer), Arrived(peer, offer, whole)]
            refusal = self._judge(peer, offer, now)
            if refusal is not None:
                return _refused(peer, offer, *refusal)
            store = self._open_store(folder, offer)
        except OSError as error:
            return _refused(peer, offer, "busy", f"the disk refuses: {error.strerror}")
        pace = Pace(minimum_rate=self.limits.minimum_rate)
        machine = TransferReceiver(offer, deadline, store.stored, pace, Backoff(self.draw))
        self._sessions[key] = _Session(peer, machine, store)
        return self._do(key, machine.start(now), now)

    def chunk(self, peer: str, frame: ChunkFrame, now: float) -> list[Output]:
        """Take a chunk; one that belongs to nothing open is dropped."""
        key = (peer, frame.name)
        session = self._sessions.get(key)
        return [] if session is None else self._do(key, session.machine.chunk(frame.offset, frame.data, now), now)

    def hear(self, peer: str, message: Fail | Cancel, now: float) -> list[Output]:
        """Take a sender's farewell."""
        key = (peer, short_name(message.transfer))
        session = self._sessions.get(key)
        return [] if session is None else self._do(key, session.machine.hear(message), now)

    def tick(self, now: float) -> list[Output]:
        """Do what is due."""
        due = [key for key, session in self._sessions.items() if session.machine.due <= now]
        return [output for key in due for output in self._do(key, self._sessions[key].machine.tick(now), now)]

    def restarted(self, now: float) -> None:
        """Note that the connection was lost and is back."""
        for session in self._sessions.values():
            session.machine.restarted(now)

    def sweep(self, clock: float) -> None:
        """Remove what earlier processes left and nobody asks for any more; before anything is open.

        Args:
            clock: Seconds since 1970.
        """
        for folder in self.folder.glob("*/*"):
            sweep(folder, clock)
            if folder.name == MESSAGES:  # a complete one was read at once, or its sender still has it
                for whole in [path for path in folder.iterdir() if not path.suffix]:
                    remove_transfer(whole)

    def close(self) -> None:
        """Keep what is there for a later process."""
        for session in self._sessions.values():
            session.store.close()
        self._sessions.clear()

    @property
    def due(self) -> float:
        """Return when ``tick`` has something to do."""
        return min((session.machine.due for session in self._sessions.values()), default=math.inf)

    @property
    def open(self) -> int:
        """Return how many transfers are open."""
        return len(self._sessions)

    def _judge(self, peer: str, offer: Offer, now: float) -> tuple[ReasonCode, str] | None:
        """Say why an offer cannot be taken on."""
        opened = sum(session.peer == peer for session in self._sessions.values())
        quota = self._quotas.setdefault(peer, Quota(self.limits))
        stored = sum(stored_bytes(content_folder(self.folder, peer, media)) for media in ("message", "bundle"))
        return quota.judge(offer, opened, stored, now)

    def _open_store(self, folder: Path, offer: Offer) -> ContentStore:
        """Return a store: in memory for a small message while there is room."""
        used = sum(session.machine.offer.size for session in self._sessions.values() if isinstance(session.store, MemoryStore))
        small = offer.media == "message" and offer.size <= self.limits.memory_content
        return MemoryStore(offer) if small and used + offer.size <= self.limits.memory_bytes else FileStore(folder, offer)

    def _do(self, key: tuple[str, bytes], actions: list[Action], now: float) -> list[Output]:
        """Carry out what a machine asks for."""
        session = self._sessions[key]
        waiting, outputs = list(actions), list[Output]()
        while waiting:
            action = waiting.pop(0)
            try:
                waiting += self._carry_out(session, action, outputs, now)
            except OSError as error:
                waiting = session.machine.give_up("busy", f"the disk refuses: {error.strerror}")
            if isinstance(action, Ended):
                session.store.close()
                self._sessions.pop(key, None)
        return outputs

    def _carry_out(self, session: _Session, action: Action, outputs: list[Output], now: float) -> list[Action]:
        """Carry out one action, and return what the machine asks for next."""
        machine, store, peer = session.machine, session.store, session.peer
        if isinstance(action, Write):
            store.write(action.offset, action.data)
        elif isinstance(action, Verify):
            return machine.verified(action.group, store.verify(action.group), now)
        elif isinstance(action, Finish):
            content = store.finish()
            if content is not None:
                outputs.append(Arrived(peer, machine.offer, content))
            return machine.finished(content is not None)
        elif isinstance(action, Say) and not (isinstance(action.message, Done) and machine.offer.media == "message"):
            outputs.append(Outgoing(peer, action.message))  # a message is answered by its receipt
        elif isinstance(action, Ended) and action.code != "accepted":
            outputs.append(Broken(peer, machine.offer, action.code, action.reason))
        return []


def _done(peer: str, offer: Offer) -> list[Output]:
    """Return the answer to an offer of what is there already."""
    return [] if offer.media == "message" else [Outgoing(peer, Done(offer.transfer))]


def _refused(peer: str, offer: Offer, code: ReasonCode, reason: str) -> list[Output]:
    """Return the answer to an offer that is not taken on."""
    return [Outgoing(peer, Fail(offer.transfer, code, reason)), Broken(peer, offer, code, reason)]
