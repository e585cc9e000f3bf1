"""Messages between a coordinator and its fleet that belong to no method: answers, reports, presence, the channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from protocol.message_checks import (
    MAXIMUM_NAME,
    ReasonCode,
    require,
    require_count,
    require_digest,
    require_text,
    require_time,
)


@dataclass(frozen=True)
class Receipt:
    """The receiver's answer to one message.

    Attributes:
        device: Sender of the message that is answered; a receipt of another device proves nothing.
        boot: Boot counter of that message.
        sequence: Its sequence number.
        accepted: Whether it counts.
        reason: Why not, in one sentence; empty when accepted.
        code: The same for programs; left out, it is ``accepted`` or ``refused``.
    """

    KIND: ClassVar[str] = "receipt/1"

    device: str
    boot: int
    sequence: int
    accepted: bool
    reason: str
    code: ReasonCode | None = None

    def __post_init__(self) -> None:
        """Fill in the code, and refuse an answer that contradicts itself."""
        if self.code is None:
            object.__setattr__(self, "code", "accepted" if self.accepted else "refused")
        require(self.accepted == (self.code == "accepted"), "a receipt contradicts itself", f"accepted {self.accepted}, code {self.code}")
        require_text("device of a receipt", self.device, MAXIMUM_NAME)
        require_count("boot counter", self.boot)
        require_count("sequence number", self.sequence)


@dataclass(frozen=True)
class EvaluationReport:
    """What a device found out about its classifiers; each accuracy from 0 to 1, or None when it has no labels.

    Attributes:
        round: Round number.
        samples: Query samples that were classified.
        tailored_accuracy: Accuracy of the tailored classifier.
        nearest_prototype_accuracy: Accuracy of the nearest global prototype.
    """

    KIND: ClassVar[str] = "evaluation-report/1"

    round: int
    samples: int
    tailored_accuracy: float | None
    nearest_prototype_accuracy: float | None

    def __post_init__(self) -> None:
        """Refuse figures that cannot be."""
        require(self.round >= 0, "a round number is negative", self.round)
        require(self.samples >= 0, "a number of samples is negative", self.samples)
        for accuracy in (self.tailored_accuracy, self.nearest_prototype_accuracy):
            require(accuracy is None or 0.0 <= accuracy <= 1.0, "an accuracy is not between 0 and 1", accuracy)


@dataclass(frozen=True)
class Presence:
    """Whether a device is there: retained as its birth, and signed beforehand as its will.

    MQTT keeps the order of one topic only, so a will may overtake a birth: a receiver compares boot counters, and an
    ``offline`` counts for the birth of the same boot alone.

    Attributes:
        status: ``online`` or ``offline``.
        boot: Boot counter of the process.
        bundle: Digest of the bundle in use.
        agent_version: Version of the program.
        state: What it is doing, in a word.
    """

    KIND: ClassVar[str] = "presence/1"

    status: Literal["online", "offline"]
    boot: int
    bundle: str
    agent_version: str
    state: str

    def __post_init__(self) -> None:
        """Refuse fields that cannot be."""
        require_count("boot counter", self.boot)
        require_digest("bundle of a device", self.bundle)
        require_text("version of an agent", self.agent_version, MAXIMUM_NAME)
        require_text("state of an agent", self.state, MAXIMUM_NAME)


@dataclass(frozen=True)
class ChannelHead:
    """The newest bundle and the open round, retained and signed on ``channel``; it expires within a day.

    Attributes:
        bundle: Digest of the newest bundle.
        bundle_version: Its version; a device never goes back.
        transfer: SHA-256 of the bundle as one file, under which it can be fetched.
        size: Its size in bytes.
        issued: Seconds since 1970, UTC.
        round: The open round, or None.
        status: What the coordinator is doing: ``open``, ``paused`` or ``closed``.
    """

    KIND: ClassVar[str] = "channel-head/1"

    bundle: str
    bundle_version: int
    transfer: str
    size: int
    issued: float
    round: int | None
    status: Literal["open", "paused", "closed"]

    def __post_init__(self) -> None:
        """Refuse fields that cannot be."""
        require_digest("bundle of a channel", self.bundle)
        require_digest("transfer of a channel", self.transfer)
        require_count("version of a bundle", self.bundle_version)
        require_count("size of a bundle", self.size)
        require_time("time of a channel", self.issued)
        require_count("round number", self.round or 0)
