"""What comes out of delivery besides messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from protocol.envelope import Envelope, Header
from protocol.errors import FedtailorError
from protocol.message_checks import ReasonCode
from protocol.messages import Receipt
from protocol.outbox import Waiting


@dataclass(frozen=True)
class Settled:
    """A message of ours was answered for good, or its time is over (``receipt`` is None then)."""

    waiting: Waiting
    receipt: Receipt | None


@dataclass(frozen=True)
class Fetched:
    """Content that was asked for is here, verified: a file named by its SHA-256, the caller's to remove."""

    peer: str
    transfer: str
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
    """A payload that is not believed; ``header`` is there when its signature verified, and a refusal was sent then."""

    topic: str
    error: FedtailorError
    header: Header | None


Event: TypeAlias = Envelope | Settled | Fetched | NotFetched | Refusal
