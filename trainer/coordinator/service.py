"""The coordinator at work: verify what devices send, answer each with a receipt, publish the global prototypes."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from protocol.envelope import Address, Expectation, seal, unseal
from protocol.errors import FedtailorError, MessageError, NotAllowedError, StaleMessageError, TransportError
from protocol.freshness import DuplicateMessageError, SequenceGuard
from protocol.keys import PrivateKey
from protocol.messages import EvaluationReport, GlobalPrototypes, Message, PrototypeUpdate, Receipt
from protocol.mqtt import Connection, Received
from protocol.topics import COORDINATOR, Topics
from trainer.coordinator.prototype_round import PrototypeRound
from trainer.coordinator.registry import Registry

POLL_SECONDS = 0.5
GLOBAL_LIFETIME_SECONDS = 86_400.0
REASON_CHARACTERS = 300
REMEMBERED = 4096
SHOWN_REFUSALS = 100
LOGGER = logging.getLogger(__name__)
Place: TypeAlias = tuple[str, int, int]  # sender, boot counter, sequence


@dataclass
class Coordinator:
    """One exchange of prototypes over a broker.

    Args:
        connection: An open connection that receives every device's ``up`` topic.
        topics: The federation's topics.
        round: The exchange.
        registry: The devices' keys.
        key: The coordinator's private key.
        boot: The coordinator's boot counter.
        bundle: Digest of the bundle that prototypes are made with.
    """

    connection: Connection
    topics: Topics
    round: PrototypeRound
    registry: Registry
    key: PrivateKey
    boot: int
    bundle: str
    reports: dict[str, EvaluationReport] = field(default_factory=dict)
    refused: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_REFUSALS))
    refused_count: int = 0
    published: GlobalPrototypes | None = None
    _guard: SequenceGuard = field(default_factory=SequenceGuard)
    _answers: dict[Place, Receipt] = field(default_factory=dict)
    _sequence: int = 0

    def collect(self, done: Callable[[], bool], deadline: float) -> None:
        """Handle messages until ``done`` says so, or until a deadline on the clock of ``time.monotonic``."""
        while not done() and time.monotonic() < deadline:
            received = self.connection.receive(min(POLL_SECONDS, deadline - time.monotonic()))
            if received is not None:
                self.handle(received)

    def publish_prototypes(self) -> GlobalPrototypes:
        """Close the round and publish its result, retained and signed.

        Raises:
            DeadlineError: No device has sent an update.
        """
        result = self.round.result()
        self._send(result, self.topics.prototypes, GLOBAL_LIFETIME_SECONDS, retain=True)
        self.published = result
        return result

    def handle(self, received: Received) -> None:
        """Take one message from the wire; whatever is wrong with it, the coordinator goes on."""
        try:
            known = Expectation(self.topics.federation, self.bundle, self.registry.key, check_sender=self.registry.check)
            envelope = unseal(received.payload, known, time.time())
            header = envelope.header
            if self.topics.sender(received.topic) != header.sender:
                raise NotAllowedError("a device sent on another device's topic", expected=header.sender, got=received.topic)
        except FedtailorError as error:  # nobody to answer: the sender is not known for sure
            self._note(error.sentence())
            return
        place = (header.sender, header.boot, header.sequence)
        try:
            self._guard.admit(*place)
        except DuplicateMessageError:
            LOGGER.debug("answering %s again", place)
        except MessageError as error:
            self._note(error.sentence())
            return
        else:
            self._remember(place, self._judge(place, envelope.message))
        if place in self._answers:
            self._answer(place)

    def _remember(self, place: Place, receipt: Receipt) -> None:
        """Keep a receipt for duplicates; the oldest go."""
        self._answers[place] = receipt
        if len(self._answers) > REMEMBERED:
            del self._answers[next(iter(self._answers))]

    def _answer(self, place: Place) -> None:
        """Send a receipt; if that fails the device sends again and is answered then."""
        try:
            self._send(self._answers[place], self.topics.down(place[0]), GLOBAL_LIFETIME_SECONDS)
        except TransportError as error:
            LOGGER.warning("no receipt for %s: %s", place[0], error.sentence())

    def _judge(self, place: Place, message: Message) -> Receipt:
        """Count a message or refuse it whole."""
        sender = place[0]
        try:
            if isinstance(message, PrototypeUpdate):
                self._accept_update(sender, message)
            elif isinstance(message, EvaluationReport):
                self._accept_report(sender, message)
            else:
                raise MessageError("a coordinator takes no such message", got=message.KIND)
        except FedtailorError as error:
            self._note(f"{sender}: {error.sentence()}")
            return Receipt(*place, accepted=False, reason=error.sentence()[:REASON_CHARACTERS])
        return Receipt(*place, accepted=True, reason="")

    def _accept_report(self, sender: str, report: EvaluationReport) -> None:
        """Keep a report of this round."""
        if report.round != self.round.number:
            raise StaleMessageError("the report is for another round", expected=str(self.round.number), got=str(report.round))
        self.reports[sender] = report

    def _accept_update(self, sender: str, update: PrototypeUpdate) -> None:
        """Count prototypes while the round is open."""
        if self.published is not None:
            raise NotAllowedError("the round is closed", hint="come back in the next round")
        self.round.accept(sender, update)

    def _send(self, message: Message, topic: str, lifetime: float, *, retain: bool = False) -> None:
        """Sign and send a message."""
        self._sequence += 1
        now = time.time()
        address = Address(self.topics.federation, COORDINATOR, self.boot, self.bundle)
        self.connection.publish(topic, seal(message, address, self._sequence, (now, now + lifetime), self.key), retain=retain)

    def _note(self, sentence: str) -> None:
        """Log a refusal."""
        LOGGER.warning("refused: %s", sentence)
        self.refused.append(sentence)
        self.refused_count += 1
