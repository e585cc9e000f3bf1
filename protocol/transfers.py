"""Transfers both ways over a connection: what machines want to say is sent, what peers say reaches the machines."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protocol.chunk_frame import CHUNK_FRAME_BYTES, ChunkFrame
from protocol.delivery_events import Fetched, NotFetched
from protocol.fetching import Fetching
from protocol.inflow import Arrived, Broken, Inflow, Output, content_folder
from protocol.message_checks import TRANSIENT
from protocol.messages import Cancel, Done, Fail, Offer, Want
from protocol.outbox import Place
from protocol.outflow import Outflow, Sent, Spoken
from protocol.postman import Postman
from protocol.transfer_files import find_whole, remove_transfer
from protocol.transfer_layout import largest_chunk


@dataclass
class Transfers:
    """The transfers of one side.

    ``events`` holds what the caller should know, ``messages`` complete sealed messages with their peers, ``sent`` outgoing
    transfers that ended; the caller empties all three.

    Args:
        postman: Sends.
        inflow: Incoming transfers.
        outflow: Outgoing transfers.
        fetching: What is wanted.
    """

    postman: Postman
    inflow: Inflow
    outflow: Outflow
    fetching: Fetching
    events: deque[Fetched | NotFetched] = field(default_factory=deque)
    messages: deque[tuple[str, bytes]] = field(default_factory=deque)
    sent: deque[Sent] = field(default_factory=deque)
    _unsent: tuple[str, bytes] | None = None  # a frame that the broker did not take

    def fetch(self, peer: str, transfer: str, deadline: float) -> None:
        """Want something that a peer serves; what is here already is not asked for."""
        whole = find_whole(content_folder(self.inflow.folder, peer, "bundle"), transfer)
        if whole is not None:
            self.events.append(Fetched(peer, transfer, whole))
        else:
            self.fetching.want(peer, transfer, deadline)

    def chunk(self, peer: str, payload: bytes, now: float) -> None:
        """Take a frame.

        Raises:
            MalformedMessageError: It is no chunk, or damaged.
        """
        self._take_in(self.inflow.chunk(peer, ChunkFrame.from_bytes(payload), now), now)

    def offered(self, peer: str, offer: Offer, now: float) -> None:
        """Take an offer of a sealed message, or of something that is wanted; nothing else is taken."""
        if offer.media != "message":
            if self.fetching.find(peer, offer.transfer) is None:
                self.postman.say(Fail(offer.transfer, "refused", "nobody here asked for this"), peer)
                return
            self.fetching.began(peer, offer.transfer)
        self._take_in(self.inflow.offered(peer, offer, now, now + offer.expires - self.postman.clock()), now)

    def hear(self, peer: str, message: Want | Done | Fail | Cancel, now: float) -> None:
        """Take any other message of a transfer."""
        if isinstance(message, Fail | Cancel):
            self._take_in(self.inflow.hear(peer, message, now), now)
            fetch = self.fetching.find(peer, message.transfer)
            if fetch is not None and isinstance(message, Fail) and message.code not in TRANSIENT:
                self._give_up(peer, message)
        self.take_out(self.outflow.hear(peer, message, now, self.postman.clock()))

    def tick(self, now: float) -> None:
        """Do what is due, and keep to what the broker takes."""
        room = largest_chunk(self.postman.port.maximum_payload - CHUNK_FRAME_BYTES)
        if room is not None and room != self.outflow.chunk_bytes:
            self._unsent = None
            self.take_out(self.outflow.resize(room, now))
        for fetch in self.fetching.expired(now):
            self.events.append(NotFetched(fetch.peer, fetch.transfer, "expired", "it did not come in time"))
        for fetch in self.fetching.requests(now):
            self.postman.say(Want.of_offer(fetch.transfer), fetch.peer)
        self._take_in(self.inflow.tick(now), now)
        self.take_out(self.outflow.tick(now))

    def send_chunk(self) -> bool:
        """Send the next chunk, if one is asked for; tell whether there was one."""
        chunk = self._unsent or self.outflow.take_chunk()
        self._unsent = None
        if chunk is None:
            return False
        if isinstance(chunk, list):
            self.take_out(chunk)
        elif not self.postman.hand_over(self.postman.routes.topic_to(chunk[0]), chunk[1]):
            self._unsent = chunk
            return False  # the next round finds out why
        return True

    def restarted(self, now: float) -> None:
        """Note that the connection was lost and is back."""
        self.inflow.restarted(now)
        self.take_out(self.outflow.restarted(now))
        self.fetching.restarted(now)

    @property
    def due(self) -> float:
        """Return when ``tick`` has something to do."""
        return min(self.inflow.due, self.outflow.due, self.fetching.due)

    def take_out(self, outputs: Sequence[Spoken | Sent]) -> None:
        """Send what outgoing transfers say."""
        for output in outputs:
            if isinstance(output, Spoken):
                self.postman.say(output.message, output.peer, output.tag if isinstance(output.tag, Place) else None)
            elif output.tag is not None:
                self.sent.append(output)

    def _take_in(self, outputs: Sequence[Output], now: float) -> None:
        """Send what incoming transfers say, and keep what arrived."""
        for output in outputs:
            if isinstance(output, Arrived):
                self._arrived(output)
            elif isinstance(output, Broken):
                self._broken(output, now)
            else:
                self.postman.say(output.message, output.peer)

    def _arrived(self, arrived: Arrived) -> None:
        """Keep complete content for the caller."""
        content = arrived.content
        if arrived.offer.media != "message":
            self.fetching.forget(arrived.peer, arrived.offer.transfer)
            self.events.append(Fetched(arrived.peer, arrived.offer.transfer, Path(str(content))))
        elif isinstance(content, Path):
            self.messages.append((arrived.peer, content.read_bytes()))
            remove_transfer(content)  # its sender has it until it is answered
        else:
            self.messages.append((arrived.peer, content))

    def _broken(self, broken: Broken, now: float) -> None:
        """Ask again later for what may still come."""
        if self.fetching.find(broken.peer, broken.offer.transfer) is None:
            return
        if broken.code in TRANSIENT:
            self.fetching.postpone(broken.peer, broken.offer.transfer, now)
        else:
            self._give_up(broken.peer, Fail(broken.offer.transfer, broken.code, broken.reason))

    def _give_up(self, peer: str, fail: Fail) -> None:
        """Want something no longer."""
        if self.fetching.find(peer, fail.transfer) is not None:
            self.fetching.forget(peer, fail.transfer)
            self.events.append(NotFetched(peer, fail.transfer, fail.code, fail.reason))
