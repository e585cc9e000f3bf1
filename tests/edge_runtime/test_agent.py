"""The device's side of an exchange, against a coordinator that lives in the connection and may lie, lose or be late."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_runtime import Bundle
from edge_runtime import agent as agent_module
from edge_runtime.agent import Agent, DeviceIdentity, require_exchange, subscriptions
from protocol.envelope import Address, Envelope, Expectation, seal, unseal
from protocol.errors import BundleError, DeadlineError, InputError, NotAllowedError
from protocol.keys import PrivateKey
from protocol.messages import EvaluationReport, GlobalPrototypes, Message, PrototypeUpdate, Receipt
from protocol.mqtt import Received
from protocol.topics import COORDINATOR
from tests.edge_runtime.tiny import Scope, write_tiny

DEVICE_KEY = PrivateKey.generate()
IDENTITY = DeviceIdentity("demo", "pi-1", DEVICE_KEY, boot=4)
REPORT = EvaluationReport(0, 10, 0.5, None)
Answer = Callable[["FakeConnection", Envelope], None]


class FakeConnection:
    """Takes what a device publishes, opens it as a coordinator would, and lets ``answer`` put replies into the inbox."""

    def __init__(self, digest: str, coordinator: PrivateKey, answer: Answer) -> None:
        self.digest, self.coordinator, self.answer = digest, coordinator, answer
        self.inbox: list[Received] = []
        self.published: list[tuple[str, Envelope]] = []

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, deadline_seconds: float) -> None:
        assert deadline_seconds > 0
        envelope = unseal(payload, Expectation("demo", self.digest, lambda _: DEVICE_KEY.public), time.time())
        self.published.append((topic, envelope))
        self.answer(self, envelope)

    def receive(self, deadline_seconds: float) -> Received | None:
        if self.inbox:
            return self.inbox.pop(0)
        time.sleep(max(0.0, min(0.005, deadline_seconds)))
        return None

    def reply(self, message: Message, *, sender: str = COORDINATOR, key: PrivateKey | None = None, bundle: str | None = None) -> None:
        now = time.time()
        payload = seal(message, Address("demo", sender, 1, bundle or self.digest), 1, (now, now + 60), key or self.coordinator)
        self.inbox.append(Received("fedtailor/v1/demo/devices/pi-1/down", payload))


def accept(connection: FakeConnection, envelope: Envelope) -> None:
    connection.reply(receipt_of(envelope))


def receipt_of(envelope: Envelope) -> Receipt:
    return Receipt(envelope.header.sender, envelope.header.boot, envelope.header.sequence, accepted=True, reason="")


def prototypes(round_number: int = 0, dimension: int = 5) -> GlobalPrototypes:
    means = np.arange(2 * dimension, dtype=np.float32).reshape(2, dimension)
    return GlobalPrototypes(round_number, np.array([2, 0]), means, np.array([30, 10]), 2)


@pytest.fixture
def make_agent(bundle: Bundle, coordinator_key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Agent, FakeConnection]]:
    monkeypatch.setattr(agent_module, "RESEND_SECONDS", 0.05)

    def make(answer: Answer = accept, seconds: float = 5.0, round_number: int = 0) -> tuple[Agent, FakeConnection]:
        connection = FakeConnection(bundle.digest, coordinator_key, answer)
        deadline = time.monotonic() + seconds
        return Agent(bundle, IDENTITY, connection, deadline, round_number), connection  # type: ignore[arg-type]  # a double

    return make


Make = Callable[..., tuple[Agent, FakeConnection]]


def test_an_update_holds_the_means_of_large_classes_only(make_agent: Make) -> None:
    agent, connection = make_agent(round_number=3)
    features = np.random.default_rng(0).random((25, 5)).astype(np.float32)
    labels = np.array([2] * 12 + [0] * 9 + [1] * 4)
    agent.send_prototypes(features, labels)
    topic, envelope = connection.published[0]
    assert topic == "fedtailor/v1/demo/devices/pi-1/up"
    assert (envelope.header.sender, envelope.header.boot, envelope.header.sequence) == ("pi-1", 4, 1)
    update = envelope.message
    assert isinstance(update, PrototypeUpdate)
    assert update.round == 3
    assert update.classes.tolist() == [2]
    assert update.counts.tolist() == [12]
    np.testing.assert_allclose(update.means[0], features[:12].mean(axis=0), rtol=1e-6)


def test_too_few_samples_of_each_class_are_not_released(make_agent: Make) -> None:
    agent, connection = make_agent()
    with pytest.raises(InputError, match="at least 10"):
        agent.send_prototypes(np.zeros((9, 5), np.float32), np.zeros(9, np.int64))
    assert connection.published == []


def test_a_lost_message_is_sent_again_unchanged(make_agent: Make) -> None:
    def third_time(connection: FakeConnection, envelope: Envelope) -> None:
        if len(connection.published) == 3:
            accept(connection, envelope)

    agent, connection = make_agent(third_time)
    agent.send(REPORT)
    assert [envelope.header.sequence for _, envelope in connection.published] == [1, 1, 1]


def test_each_message_has_a_sequence_of_its_own(make_agent: Make) -> None:
    agent, connection = make_agent()
    agent.send(REPORT)
    agent.send(REPORT)
    assert [envelope.header.sequence for _, envelope in connection.published] == [1, 2]


def test_a_refusal_is_told_with_its_reason(make_agent: Make) -> None:
    def refuse(connection: FakeConnection, envelope: Envelope) -> None:
        connection.reply(replace(receipt_of(envelope), accepted=False, reason="the round is closed", code="closed"))

    with pytest.raises(NotAllowedError, match="the round is closed"):
        make_agent(refuse)[0].send(REPORT)


def test_no_receipt_ends_at_the_deadline(make_agent: Make) -> None:
    agent, connection = make_agent(lambda *_: None, seconds=0.3)
    with pytest.raises(DeadlineError, match="receipt"):
        agent.send(REPORT)
    assert len(connection.published) > 1


def wrong_sequence(connection: FakeConnection, envelope: Envelope) -> None:
    connection.reply(replace(receipt_of(envelope), sequence=envelope.header.sequence + 1))


def wrong_boot(connection: FakeConnection, envelope: Envelope) -> None:
    connection.reply(replace(receipt_of(envelope), boot=envelope.header.boot - 1))


def wrong_key(connection: FakeConnection, envelope: Envelope) -> None:
    connection.reply(receipt_of(envelope), key=PrivateKey.generate())


def wrong_sender(connection: FakeConnection, envelope: Envelope) -> None:
    connection.reply(receipt_of(envelope), sender="pi-2")


def wrong_bundle(connection: FakeConnection, envelope: Envelope) -> None:
    connection.reply(receipt_of(envelope), bundle="0" * 64)


def wrong_device(connection: FakeConnection, envelope: Envelope) -> None:
    connection.reply(replace(receipt_of(envelope), device="pi-2"))  # genuine, but another device's


def no_message(connection: FakeConnection, envelope: Envelope) -> None:
    connection.inbox.append(Received("fedtailor/v1/demo/devices/pi-1/down", b"noise"))


@pytest.mark.parametrize("answer", [wrong_device, wrong_sequence, wrong_boot, wrong_key, wrong_sender, wrong_bundle, no_message])
def test_a_receipt_that_is_not_for_this_message_counts_for_nothing(make_agent: Make, answer: Answer) -> None:
    with pytest.raises(DeadlineError):
        make_agent(answer, seconds=0.2)[0].send(REPORT)


def test_global_prototypes_arrive_weighted_and_sorted(make_agent: Make) -> None:
    agent, connection = make_agent()
    connection.reply(prototypes())
    found = agent.receive_prototypes()
    assert found.classes.tolist() == [0, 2]
    assert found.counts.tolist() == [10, 30]
    np.testing.assert_allclose(found.means(), prototypes().means[::-1])


def test_global_prototypes_that_come_before_the_receipt_are_kept(make_agent: Make) -> None:
    def both(connection: FakeConnection, envelope: Envelope) -> None:
        connection.reply(prototypes())
        accept(connection, envelope)

    agent, connection = make_agent(both)
    agent.send(REPORT)
    assert connection.inbox == []
    assert agent.receive_prototypes().classes.tolist() == [0, 2]


def test_bad_messages_are_named_and_the_good_one_is_still_found(make_agent: Make) -> None:
    agent, connection = make_agent()
    connection.inbox.append(Received("fedtailor/v1/demo/all/prototypes", b"noise"))
    connection.reply(prototypes(), key=PrivateKey.generate())
    connection.reply(prototypes(dimension=4))
    connection.reply(REPORT)
    connection.reply(prototypes())
    assert agent.receive_prototypes().classes.tolist() == [0, 2]
    assert len(agent.refused) == 4


def test_prototypes_of_an_earlier_round_are_refused(make_agent: Make) -> None:
    agent, connection = make_agent(round_number=2)
    connection.reply(prototypes(1))
    connection.reply(prototypes(2))
    agent.receive_prototypes()
    assert len(agent.refused) == 1
    assert "another round" in agent.refused[0]


def test_the_deadline_names_what_was_refused(make_agent: Make) -> None:
    agent, connection = make_agent(seconds=0.2)
    connection.reply(prototypes(), key=PrivateKey.generate())
    with pytest.raises(DeadlineError, match="signature"):
        agent.receive_prototypes()


def test_a_bundle_without_coordinator_or_features_cannot_exchange(
    tmp_path: Path, bundle_paths: dict[Scope | None, Path], release_key: PrivateKey
) -> None:
    alone = Bundle.open(write_tiny(tmp_path / "alone", release_key), release_key.public)
    with pytest.raises(BundleError, match="coordinator"):
        require_exchange(alone)
    with pytest.raises(BundleError, match="features"):
        require_exchange(Bundle.open(bundle_paths[None], release_key.public))


def test_a_device_hears_its_own_topic_and_the_global_prototypes(bundle: Bundle) -> None:
    require_exchange(bundle)
    assert bundle.manifest.feature_dimension() == 5
    assert subscriptions("demo", "pi-1") == ("fedtailor/v1/demo/devices/pi-1/down", "fedtailor/v1/demo/all/prototypes")
