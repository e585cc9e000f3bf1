"""All outgoing transfers of one side: content that peers may fetch, and content that is pressed on one peer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.backoff import Backoff
from protocol.chunk_frame import ChunkFrame, short_name
from protocol.errors import InputError
from protocol.message_checks import ReasonCode
from protocol.transfer_actions import Action, Ended, Say
from protocol.transfer_messages import Cancel, Done, Fail, Media, Offer, TransferMessage, Want
from protocol.transfer_sender import TransferSender
from protocol.transfer_source import Source, offer_of

MOST_SESSIONS_OF_A_PEER = 4
MOST_PRESSED_ON_A_PEER = 2


@dataclass(frozen=True)
class Spoken:
    """A message for a peer; ``tag`` is what the pressed content was marked with."""

    peer: str
    message: TransferMessage
    tag: object = None


@dataclass(frozen=True)
class Sent:
    """An outgoing transfer ended: ``accepted``, or why not."""

    peer: str
    transfer: str
    tag: object
    code: ReasonCode
    reason: str


@dataclass(frozen=True)
class _Served:
    """Content that any peer may fetch."""

    source: Source
    media: Media
    round_number: int | None
    expires: float


@dataclass
class _Session:
    """One outgoing transfer."""

    peer: str
    machine: TransferSender
    source: Source
    tag: object


@dataclass
class Outflow:
    """Outgoing transfers.

    Args:
        chunk_bytes: Largest piece that the broker takes at present.
        draw: Random numbers from 0 to 1, for the waits.
    """

    chunk_bytes: int
    draw: Callable[[], float] = random.random
    _served: dict[str, _Served] = field(default_factory=dict)
    _sessions: dict[tuple[str, str], _Session] = field(default_factory=dict)

    def serve(self, source: Source, media: Media, *, round_number: int | None, expires: float) -> Offer:
        """Let any peer fetch some content until it expires (seconds since 1970)."""
        self._served[source.transfer] = _Served(source, media, round_number, expires)
        return offer_of(source, media, chunk_bytes=self.chunk_bytes, round_number=round_number, expires=expires)

    def withdraw(self, transfer: str) -> None:
        """Serve something no longer."""
        self._served.pop(transfer, None)

    def press(self, peer: str, source: Source, *, expires: float, deadline: float, tag: object, now: float) -> list[Spoken | Sent]:
        """Offer a sealed message to a peer until it is answered.

        Args:
            peer: Who it is for.
            source: The sealed message.
            expires: Seconds since 1970.
            deadline: The same moment on the clock of ``now``.
            tag: Comes back with every message and with the end.
            now: Time on a clock that never goes back.
        """
        offer = offer_of(source, "message", chunk_bytes=self.chunk_bytes, round_number=None, expires=expires)
        machine = TransferSender(offer, deadline, insists=True, backoff=Backoff(self.draw))
        self._sessions[peer, source.transfer] = _Session(peer, machine, source, tag)
        return self._do(self._sessions[peer, source.transfer], machine.start(now))

    def hear(self, peer: str, message: Want | Done | Fail | Cancel, now: float, clock: float) -> list[Spoken | Sent]:
        """Take what a receiver says.

        Args:
            peer: Who says it.
            message: What.
            now: Time on a clock that never goes back.
            clock: Seconds since 1970.
        """
        session = self._sessions.get((peer, message.transfer))
        if session is not None:
            return self._do(session, session.machine.hear(message, now))
        if not isinstance(message, Want):
            return []
        served = self._served.get(message.transfer)
        if served is None or served.expires < clock:
            return [Spoken(peer, Fail(message.transfer, "unknown", "nothing of this name is served here"))]
        mine = [session for session in self._sessions.values() if session.peer == peer and session.tag is None]
        if len(mine) >= MOST_SESSIONS_OF_A_PEER:
            return [Spoken(peer, Fail(message.transfer, "busy", f"{len(mine)} transfers to this device are open already"))]
        offer = offer_of(
            served.source, served.media, chunk_bytes=self.chunk_bytes, round_number=served.round_number, expires=served.expires
        )
        machine = TransferSender(offer, now + served.expires - clock, insists=False, backoff=Backoff(self.draw))
        session = self._sessions[peer, message.transfer] = _Session(peer, machine, served.source, None)
        return self._do(session, machine.start(now) if message.credit == 0 else machine.hear(message, now))

    def take_chunk(self) -> tuple[str, bytes] | list[Spoken | Sent] | None:
        """Return the next frame and its peer, in turn of the peers; None when nothing is asked for.

        Content that cannot be read any more ends its transfer, which is returned instead.
        """
        for key in list(self._sessions):
            session = self._sessions[key]
            chunk = session.machine.next_chunk()
            if chunk is None:
                continue
            self._sessions[key] = self._sessions.pop(key)  # to the end of the queue
            try:
                data = session.source.read(chunk.offset, chunk.length)
            except InputError as error:
                del self._sessions[key]
                reason = error.what[:200]
                farewell = Spoken(session.peer, Cancel(key[1], reason), session.tag)
                return [farewell, Sent(session.peer, key[1], session.tag, "cancelled", reason)]
            return session.peer, ChunkFrame(short_name(key[1]), chunk.offset, data).to_bytes()
        return None

    def resize(self, chunk_bytes: int, now: float) -> list[Spoken | Sent]:
        """Use another chunk size from now on, as the broker takes no larger ones."""
        self.chunk_bytes = chunk_bytes
        return [
            spoken for session in list(self._sessions.values()) for spoken in self._do(session, session.machine.resize(chunk_bytes, now))
        ]

    def is_pressed(self, tag: object) -> bool:
        """Tell whether a sealed message is under way."""
        return any(session.tag == tag for session in self._sessions.values())

    def has_room(self, peer: str) -> bool:
        """Tell whether another message may be pressed on a peer: each is in memory, and a receiver takes only so many."""
        return sum(session.peer == peer and session.tag is not None for session in self._sessions.values()) < MOST_PRESSED_ON_A_PEER

    def end(self, tag: object) -> None:
        """Forget the transfer with a tag: it was answered otherwise."""
        for key in [key for key, session in self._sessions.items() if session.tag == tag and tag is not None]:
            del self._sessions[key]

    def tick(self, now: float) -> list[Spoken | Sent]:
        """Do what is due."""
        due = [session for session in self._sessions.values() if session.machine.due <= now]
        return [spoken for session in due for spoken in self._do(session, session.machine.tick(now))]

    def restarted(self, now: float) -> list[Spoken | Sent]:
        """Note that the connection was lost and is back."""
        return [spoken for session in self._sessions.values() for spoken in self._do(session, session.machine.restarted(now))]

    @property
    def due(self) -> float:
        """Return when ``tick`` has something to do."""
        return min((session.machine.due for session in self._sessions.values()), default=math.inf)

    def _do(self, session: _Session, actions: list[Action]) -> list[Spoken | Sent]:
        """Carry out what a machine asks for."""
        outputs: list[Spoken | Sent] = []
        transfer = session.machine.offer.transfer
        for action in actions:
            if isinstance(action, Say):
                outputs.append(Spoken(session.peer, action.message, session.tag))
            elif isinstance(action, Ended):
                self._sessions.pop((session.peer, transfer), None)
                outputs.append(Sent(session.peer, transfer, session.tag, action.code, action.reason))
        return outputs
