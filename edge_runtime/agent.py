"""One device's side of the prototype exchange: send prototypes, receive and verify the global ones, report.

The broker is taken for a lossy pipe: a message counts as delivered when the coordinator's signed receipt came back, and
is sent again until then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edge_runtime.bundle import Bundle
from edge_runtime.prototypes import DEFAULT_MINIMUM_COUNT, Prototypes, class_statistics
from protocol.envelope import Address, Envelope, Expectation, seal, unseal
from protocol.errors import (
    BundleError,
    DeadlineError,
    FedtailorError,
    InputError,
    MessageError,
    NotAllowedError,
    StaleMessageError,
    TransportError,
    UnknownDeviceError,
)
from protocol.keys import PrivateKey, PublicKey
from protocol.messages import EvaluationReport, GlobalPrototypes, Message, PrototypeUpdate, Receipt, check_prototypes
from protocol.mqtt import Connection
from protocol.topics import COORDINATOR, Topics

RESEND_SECONDS = 2.0
SHOWN_REFUSALS = 100
Kind = TypeVar("Kind", bound=Message)


@dataclass(frozen=True)
class DeviceIdentity:
    """Who a device is.

    Attributes:
        federation: Federation that it belongs to.
        device: Its id.
        key: Its private key.
        boot: Its boot counter, noted on disk before.
    """

    federation: str
    device: str
    key: PrivateKey
    boot: int


@dataclass
class Agent:
    """A device in a federation.

    Args:
        bundle: The device's bundle; it names the coordinator's key.
        identity: Who the device is.
        connection: An open connection that receives the topics of ``subscriptions``.
        deadline: When to give up, on the clock of ``time.monotonic``.
        round_number: Round of the exchange; a broker may still hold the prototypes of another one, which are refused.
    """

    bundle: Bundle
    identity: DeviceIdentity
    connection: Connection
    deadline: float
    round_number: int = 0
    refused: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_REFUSALS))
    _sequence: int = 0
    _global: GlobalPrototypes | None = None

    def send_prototypes(self, features: NDArray[np.float32], labels: NDArray[np.int64]) -> PrototypeUpdate:
        """Send the class prototypes of local labelled data and wait for the receipt.

        Args:
            features: (N, D) float32.
            labels: Class indices, (N,) int64.

        Raises:
            InputError: No class has enough samples to be released.
            NotAllowedError: The coordinator refused the update.
            DeadlineError: No receipt came in time.
        """
        released = class_statistics(features, labels).at_least(DEFAULT_MINIMUM_COUNT)
        if len(released.classes) == 0:
            raise InputError("no class has enough samples to be released", expected=f"at least {DEFAULT_MINIMUM_COUNT} of one class")
        update = PrototypeUpdate(self.round_number, released.classes, released.means(), released.counts)
        self.send(update)
        return update

    def send(self, message: Message) -> None:
        """Send a message until its receipt comes.

        Raises:
            NotAllowedError: The coordinator refused it.
            DeadlineError: No receipt came in time.
        """
        self._sequence += 1
        now = time.time()
        remaining = self._remaining("receipt")
        address = Address(self.identity.federation, self.identity.device, self.identity.boot, self.bundle.digest)
        payload = seal(message, address, self._sequence, (now, now + remaining), self.identity.key)
        topic = Topics(self.identity.federation).up(self.identity.device)
        receipt = None
        while receipt is None:
            self.connection.publish(topic, payload, deadline_seconds=self._remaining("receipt"))
            receipt = self._wait(Receipt, self._is_mine, RESEND_SECONDS)
        if not receipt.accepted:
            raise NotAllowedError(f"the coordinator refused a {message.KIND}", got=receipt.reason)

    def try_to_report(self, report: EvaluationReport) -> bool:
        """Send a report, and tell whether the coordinator took it; a coordinator that has left needs none."""
        try:
            self.send(report)
        except TransportError:
            return False
        return True

    def receive_prototypes(self) -> Prototypes:
        """Wait for the global prototypes and verify them.

        Raises:
            DeadlineError: None came in time.
        """
        while self._global is None:
            self._remaining("global prototypes")
            self._global = self._wait(GlobalPrototypes, lambda _: True, RESEND_SECONDS)
        return Prototypes.from_means(self._global.classes, self._global.means, self._global.counts)

    def _wait(self, kind: type[Kind], wanted: Callable[[Kind], bool], seconds: float) -> Kind | None:
        """Return the next verified message of a kind, or None after some seconds."""
        until = min(self.deadline, time.monotonic() + seconds)
        while time.monotonic() < until:
            received = self.connection.receive(until - time.monotonic())
            if received is None:
                continue
            try:
                message = self._verify(received.payload).message
            except FedtailorError as error:  # one bad message must not end the device; it is counted and named
                self.refused.append(error.sentence())
                continue
            if isinstance(message, GlobalPrototypes) and self._global is None:
                self._global = message  # retained: it may come while a receipt is waited for
            if isinstance(message, kind) and wanted(message):
                return message
        return None

    def _verify(self, payload: bytes) -> Envelope:
        """Return a message of the coordinator about this bundle."""
        envelope = unseal(payload, Expectation(self.identity.federation, self.bundle.digest, self._find_key), time.time())
        if isinstance(envelope.message, GlobalPrototypes):
            if envelope.message.round != self.round_number:
                expected, got = f"round {self.round_number}", f"round {envelope.message.round}"
                raise StaleMessageError("global prototypes are of another round", expected=expected, got=got)
            check_prototypes(envelope.message, len(self.bundle.manifest.classes), self.bundle.manifest.feature_dimension())
        elif not isinstance(envelope.message, Receipt):
            raise MessageError("a device takes no such message", got=envelope.header.kind)
        return envelope

    def _find_key(self, sender: str) -> PublicKey:
        """Return the coordinator's key; nobody else may speak to a device."""
        if sender != COORDINATOR or self.bundle.manifest.coordinator_key is None:
            raise UnknownDeviceError("a message is not from the coordinator of this bundle", got=sender)
        return PublicKey.from_hex(self.bundle.manifest.coordinator_key)

    def _is_mine(self, receipt: Receipt) -> bool:
        """Tell whether a receipt answers the latest message."""
        return (receipt.device, receipt.boot, receipt.sequence) == (self.identity.device, self.identity.boot, self._sequence)

    def _remaining(self, awaited: str) -> float:
        """Return the seconds that are left."""
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            hint = f"refused on the way: {self.refused[-1]}" if self.refused else "is the coordinator running on this broker?"
            raise DeadlineError(f"no {awaited} from the coordinator in time", hint=hint)
        return remaining


def subscriptions(federation: str, device: str) -> tuple[str, ...]:
    """Return the topics that a device receives."""
    topics = Topics(federation)
    return (topics.down(device), topics.prototypes)


def require_exchange(bundle: Bundle) -> None:
    """Refuse a bundle whose devices could never exchange prototypes, before anything is sent.

    Raises:
        BundleError: No features, or no coordinator's key to believe.
    """
    bundle.manifest.feature_dimension()
    if bundle.manifest.coordinator_key is None:
        raise BundleError("this bundle names no coordinator", expected="a coordinator key", hint="export it with --coordinator-key")
