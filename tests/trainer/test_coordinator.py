"""The coordinator on its own: each kind of bad update is refused whole, with a reason, and counted nowhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from protocol.envelope import Address, Expectation, seal, unseal
from protocol.errors import DeadlineError, NotAllowedError, UnknownDeviceError
from protocol.keys import PrivateKey
from protocol.messages import EvaluationReport, GlobalPrototypes, Message, PrototypeUpdate, Receipt
from protocol.mqtt import Received
from protocol.topics import Topics
from trainer.coordinator.prototype_round import PrototypeRound
from trainer.coordinator.registry import DeviceRegistry
from trainer.coordinator.service import Coordinator

BUNDLE = "b" * 64
TOPICS = Topics("demo")
DEVICES = ["a", "b", "c"]
DIMENSION = 3


@dataclass
class Wire:
    """Stands in for the connection: the faults below cannot be had from a broker."""

    sent: list[tuple[str, bytes]] = field(default_factory=list)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False, deadline_seconds: float = 10.0) -> None:
        self.sent.append((topic, payload))


class Bench:
    """A coordinator, its devices' keys, and what it sent."""

    def __init__(self, folder: Path) -> None:
        self.keys = {name: PrivateKey.generate() for name in [*DEVICES, "d"]}
        for name, key in self.keys.items():
            key.public.save(folder / f"{name}.pub")
        self.own = PrivateKey.generate()
        self.wire: Any = Wire()
        self.round = PrototypeRound(4, DEVICES, 10, DIMENSION)
        self.coordinator = Coordinator(cast("Any", self.wire), TOPICS, self.round, DeviceRegistry(folder), self.own, 1, BUNDLE)
        self.sequence = 0

    def send(self, sender: str, message: Message, **changes: Any) -> Receipt | None:
        """Deliver a message and return the receipt, if there was one."""
        self.sequence += 1
        address = Address(changes.get("federation", "demo"), sender, changes.get("boot", 1), changes.get("bundle", BUNDLE))
        now = time.time() + changes.get("age", 0.0)
        payload = seal(message, address, changes.get("sequence", self.sequence), (now, now + 60), self.keys[changes.get("signer", sender)])
        before = len(self.wire.sent)
        self.coordinator.handle(Received(TOPICS.up(changes.get("topic", sender)), payload))
        answers = self.wire.sent[before:]
        if not answers:
            return None
        topic, data = answers[0]
        assert topic == TOPICS.down(sender)
        receipt = unseal(data, Expectation("demo", BUNDLE, lambda _: self.own.public), time.time()).message
        assert isinstance(receipt, Receipt)
        return receipt


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def update(classes: object = (0, 1), means: object = None, counts: object = (10, 20), round_number: int = 4) -> PrototypeUpdate:
    rows = np.ones((len(np.array(classes)), DIMENSION)) if means is None else np.array(means)
    return PrototypeUpdate(round_number, np.array(classes, np.int64), rows.astype(np.float32), np.array(counts, np.int64))


WRONG = {
    "nan": (update(means=[[np.nan, 0, 0], [0, 0, 0]]), "not finite"),
    "infinity": (update(means=[[np.inf, 0, 0], [0, 0, 0]]), "not finite"),
    "absurd": (update(means=[[1e30, 0, 0], [0, 0, 0]]), "not finite"),
    "dimension": (update(means=[[0, 0], [0, 0]]), "wrong dimension"),
    "negative count": (update(counts=(-1, 5)), "count is impossible"),
    "zero count": (update(counts=(0, 5)), "count is impossible"),
    "huge count": (update(counts=(10**12, 5)), "count is impossible"),
    "unknown class": (update(classes=(0, 10)), "class is unknown"),
    "negative class": (update(classes=(-1, 1)), "class is unknown"),
    "class twice": (update(classes=(1, 1)), "unknown or repeated"),
    "lengths differ": (update(counts=(5,)), "do not belong together"),
    "another round": (update(round_number=3), "another round"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_update_is_refused_whole_and_the_rest_counts(bench: Bench, name: str) -> None:
    message, words = WRONG[name]
    receipt = bench.send("a", message)
    assert receipt is not None
    assert not receipt.accepted
    assert words in receipt.reason
    assert bench.round.missing == DEVICES
    for device in ("b", "c"):
        answer = bench.send(device, update())
        assert answer is not None
        assert answer.accepted
    result = bench.coordinator.publish_prototypes()
    assert bench.round.accepted == ["b", "c"]
    assert result.device_count == 2
    assert result.counts.tolist() == [20, 40]
    assert np.isfinite(result.means).all()


@pytest.mark.parametrize(
    "changes",
    [{"signer": "b"}, {"federation": "other"}, {"bundle": "c" * 64}, {"age": -100_000.0}, {"age": 100_000.0}, {"topic": "b"}],
    ids=["signed by another", "federation", "bundle", "expired", "from the future", "topic of another"],
)
def test_what_cannot_be_trusted_gets_no_answer(bench: Bench, changes: dict[str, Any]) -> None:
    assert bench.send("a", update(), **changes) is None
    assert bench.round.missing == DEVICES
    assert len(bench.coordinator.refused) == 1


def test_a_device_that_is_not_selected_is_refused(bench: Bench) -> None:
    receipt = bench.send("d", update())
    assert receipt is not None
    assert not receipt.accepted
    assert "takes no part" in receipt.reason


def test_the_same_message_twice_counts_once_and_is_answered_twice(bench: Bench) -> None:
    first, second = (bench.send("a", update(), sequence=7) for _ in range(2))
    assert first == second
    assert first is not None
    assert first.accepted
    assert bench.round.result().counts.tolist() == [10, 20]


def test_a_second_update_and_a_late_one_are_refused(bench: Bench) -> None:
    assert bench.send("a", update()) is not None
    again = bench.send("a", update(counts=(1, 1)))
    assert again is not None
    assert "counted already" in again.reason
    bench.coordinator.publish_prototypes()
    late = bench.send("b", update())
    assert late is not None
    assert "closed" in late.reason


def test_an_earlier_boot_is_stale(bench: Bench) -> None:
    bench.send("a", EvaluationReport(4, 3, 0.5, None), boot=5)
    assert bench.send("a", update(), boot=4) is None
    assert bench.round.missing == DEVICES


def test_a_message_that_only_a_coordinator_sends_is_refused(bench: Bench) -> None:
    fake = update()
    receipt = bench.send("a", GlobalPrototypes(4, fake.classes, fake.means, fake.counts, 1))
    assert receipt is not None
    assert not receipt.accepted


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")])
def test_the_order_of_arrival_does_not_matter(bench: Bench, order: tuple[str, ...]) -> None:
    generator = np.random.default_rng(0)
    messages = {name: update(means=generator.normal(size=(2, 3)), counts=generator.integers(1, 100, 2)) for name in DEVICES}
    for name in order:
        bench.send(name, messages[name])
    result = bench.round.result()
    weights = np.array([messages[name].counts for name in DEVICES], float)[:, :, None]
    stacked = np.array([messages[name].means for name in DEVICES], float)
    np.testing.assert_allclose(result.means, (weights * stacked).sum(axis=0) / weights.sum(axis=0), rtol=1e-6)


def test_nobody_came() -> None:
    with pytest.raises(DeadlineError, match="no device sent"):
        PrototypeRound(0, DEVICES, 10, 3).result()


def test_the_registry_takes_no_path_from_the_wire(tmp_path: Path) -> None:
    PrivateKey.generate().public.save(tmp_path / "outside.pub")
    (tmp_path / "registry").mkdir()
    registry = DeviceRegistry(tmp_path / "registry")
    for name in ("../outside", "", ".", "a/b", "a" * 65, "nobody"):
        with pytest.raises(UnknownDeviceError):
            registry.key(name)
    with pytest.raises(NotAllowedError):
        DeviceRegistry(tmp_path / "absent")
