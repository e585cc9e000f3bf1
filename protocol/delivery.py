"""Delivery end to end over a lossy pipe: messages that must arrive, their receipts, and content too big for one message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from protocol.envelope import Address, Envelope, Expectation, Header
from protocol.errors import FedtailorError
from protocol.inbox import Inbox
from protocol.keys import PrivateKey
from protocol.messages import Message, Offer, ReasonCode, Receipt
from protocol.outbox import Outbox, Place, Waiting
from protocol.port import Port
from protocol.topics import COORDINATOR


class Routes(Protocol):
    """Which topic leads to a peer, and who may have sent on a topic; protocol.topics has one for each side."""

    def topic_to(self, peer: str) -> str:
        """Return the topic that a peer receives."""

    def peer_of(self, topic: str) -> str | None:
        """Return the only peer that may publish on a topic, or None when nothing is expected there."""


@dataclass(frozen=True)
class Settled:
    """A message of ours was answered, or its time is over (``receipt`` is None then)."""

    waiting: Waiting
    receipt: Receipt | None


@dataclass(frozen=True)
class Fetched:
    """Content that was asked for is here, verified: a file named by its SHA-256."""

    peer: str
    offer: Offer
    path: Path


@dataclass(frozen=True)
class NotFetched:
    """Content that was asked for will not come."""

    peer: str
    transfer: str
    code: ReasonCode
    reason: str


@dataclass(frozen=True)
class Refusal:
    """A payload that is not believed; ``header`` is there when its signature verified, and it was answered then."""

    topic: str
    error: FedtailorError
    header: Header | None


Event: TypeAlias = Envelope | Settled | Fetched | NotFetched | Refusal


@dataclass
class Deliverer:
    """One side's delivery; for one thread.

    Args:
        port: The connection.
        outbox: Messages that wait for receipts.
        inbox: Messages that were answered; the caller records each answer in it and commits before ``answer``.
        key: Own private key.
        address: Own federation, id, boot counter of this process, and digest of the bundle.
        expectation: What is accepted.
        routes: Topics to and from peers.
        folder: Where content that comes in pieces is kept.
        admit: Says why an offer is refused before anything of it is fetched, or None.
        clock: Seconds since 1970, UTC.
    """

    port: Port
    outbox: Outbox
    inbox: Inbox
    key: PrivateKey
    address: Address
    expectation: Expectation
    routes: Routes
    folder: Path
    admit: Callable[[str, Offer], tuple[ReasonCode, str] | None] = lambda peer, offer: None

    def send(self, message: Message, peer: str = COORDINATOR, *, expires: float, droppable: bool = False) -> Place:
        """Make a message durable; it is sent, again and again, until it is answered or expires.

        The message goes out while ``receive`` runs, at once or as a transfer when it is larger than one payload.
        """
        raise NotImplementedError

    def post(self, message: Message, topic: str, *, lifetime: float, retain: bool = False) -> bool:
        """Send a message once, whatever becomes of it, and tell whether the broker took it."""
        raise NotImplementedError

    def answer(self, envelope: Envelope, code: ReasonCode, reason: str = "") -> Receipt:
        """Return the receipt of a message; record it in the inbox, commit, and hand it to ``post_receipt``."""
        raise NotImplementedError

    def post_receipt(self, receipt: Receipt, envelope: Envelope) -> bool:
        """Send a receipt that is durable; if it is lost the message comes again and is answered from the inbox."""
        raise NotImplementedError

    def serve(self, path: Path, media: str, *, round_number: int | None, expires: float) -> Offer:
        """Let every peer fetch a file by its SHA-256 until it expires."""
        raise NotImplementedError

    def fetch(self, transfer: str, peer: str = COORDINATOR, *, expires: float) -> None:
        """Ask a peer for content by its SHA-256; ``Fetched`` or ``NotFetched`` follows, also after a restart."""
        raise NotImplementedError

    def receive(self, deadline_seconds: float) -> Event | None:
        """Do what is due (send, send again, chunks both ways) and return the next event, or None when none came in time."""
        raise NotImplementedError
