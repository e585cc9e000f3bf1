"""A device that means harm, or a stranger: refused by name, at bounded cost, while the others are served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protocol.chunk_frame import ChunkFrame, short_name
from protocol.delivery import Refusal, Settled
from protocol.envelope import MAXIMUM_SEALED_BYTES, Address, Envelope, Expectation, seal, unseal
from protocol.errors import MalformedMessageError, MessageSignatureError, NotAllowedError, StaleMessageError
from protocol.inflow import Broken, Inflow, Outgoing
from protocol.keys import PrivateKey
from protocol.messages import EvaluationReport, Fail, Message, Offer, Receipt, Want
from protocol.topics import COORDINATOR
from protocol.transfer_limits import TransferLimits
from protocol.transfer_source import BytesSource, offer_of
from tests.protocol.lossy import Packet, Pipe
from tests.protocol.samples import parameter_update
from tests.protocol.sides import BUNDLE, KEYS, TOPICS, Side, find_key, run
from tests.protocol.test_delivery import big_update

REPORT = EvaluationReport(1, 80, 0.75, None)


class Stranger:
    """Publishes what it likes, and reads what the coordinator answers to pi-1."""

    def __init__(self, folder: Path, limits: TransferLimits | None = None) -> None:
        self.pipe = Pipe(0)
        self.coordinator = Side(COORDINATOR, folder, self.pipe, limits or TransferLimits())
        self.sequence = 0

    def sealed(self, message: Message, **changes: Any) -> bytes:
        self.sequence += 1
        now = self.pipe.clock() + changes.get("age", 0.0)
        address = Address(changes.get("federation", "demo"), changes.get("sender", "pi-1"), 1, changes.get("bundle", BUNDLE))
        key = changes.get("key", KEYS["pi-1"])
        return seal(message, address, changes.get("sequence", self.sequence), (now, now + 600), key, MAXIMUM_SEALED_BYTES)

    def publish(self, payload: bytes, device: str = "pi-1") -> list[Message]:
        """Return the answers."""
        before = len(self.coordinator.port.sent)
        self.pipe.carry(Packet(TOPICS.up(device), payload))
        run([self.coordinator], 0.1)
        expectation = Expectation("demo", BUNDLE, find_key)
        answers = [sent for sent in self.coordinator.port.sent[before:] if sent.topic == TOPICS.down(device)]
        return [unseal(answer.payload, expectation, self.pipe.clock()).message for answer in answers]

    @property
    def refusals(self) -> list[type]:
        return [type(event.error) for event in self.coordinator.of(Refusal)]


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


def test_a_good_message_is_taken(stranger: Stranger) -> None:
    (receipt,) = stranger.publish(stranger.sealed(REPORT))
    assert isinstance(receipt, Receipt)
    assert receipt.accepted


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda s: b"noise", MalformedMessageError),
        (lambda s: b"FTC1" + bytes(50), MalformedMessageError),
        (lambda s: s.sealed(REPORT)[:-64] + bytes(64), MessageSignatureError),
        (lambda s: s.sealed(REPORT, key=PrivateKey.generate()), MessageSignatureError),
        (lambda s: s.sealed(REPORT, sender="pi-2", key=KEYS["pi-2"]), NotAllowedError),
        (lambda s: s.sealed(REPORT, sender=COORDINATOR, key=KEYS[COORDINATOR]), NotAllowedError),
    ],
    ids=["noise", "no chunk", "unsigned", "wrong key", "another device's", "the coordinator's own"],
)
def test_what_cannot_be_trusted_is_not_answered(stranger: Stranger, make: Callable[[Stranger], bytes], error: type) -> None:
    assert stranger.publish(make(stranger)) == []
    assert stranger.refusals == [error]
    assert stranger.coordinator.counted == 0


@pytest.mark.parametrize("changes", [{"federation": "other"}, {"bundle": "cd" * 32}, {"age": -5000.0}, {"age": 5000.0}])
def test_what_is_signed_and_stale_is_told_so(stranger: Stranger, changes: dict[str, Any]) -> None:
    (receipt,) = stranger.publish(stranger.sealed(REPORT, **changes))
    assert isinstance(receipt, Receipt)
    assert (receipt.accepted, receipt.code) == (False, "stale")
    assert stranger.refusals == [StaleMessageError]


def test_numbers_that_are_not_finite_are_named(stranger: Stranger) -> None:
    update = parameter_update()
    update.tensors["weight"][0, 0] = np.nan  # after the check of its own maker
    (receipt,) = stranger.publish(stranger.sealed(update))
    assert isinstance(receipt, Receipt)
    assert (receipt.accepted, receipt.code) == (False, "not-finite")
    assert "weight" in receipt.reason


def test_a_replay_is_answered_as_before_and_counts_once(stranger: Stranger) -> None:
    payload = stranger.sealed(REPORT)
    assert [stranger.publish(payload) for _ in range(5)] == [stranger.publish(payload)] * 5
    assert stranger.coordinator.counted == 1


def test_an_offer_of_a_gigabyte_is_refused_before_anything_is_allocated(stranger: Stranger, tmp_path: Path) -> None:
    groups = np.zeros((512, 32), np.uint8)
    (answer,) = stranger.publish(stranger.sealed(Offer("0" * 64, 2**30, 512, "message", None, 2e9, groups)))
    assert isinstance(answer, Fail)
    assert answer.code == "too-large"
    assert not (tmp_path / "content").exists()


def test_content_that_nobody_asked_for_is_refused(stranger: Stranger) -> None:
    (answer,) = stranger.publish(stranger.sealed(Offer("0" * 64, 1000, 512, "bundle", None, 2e9)))
    assert isinstance(answer, Fail)
    assert answer.code == "refused"


def test_a_third_transfer_is_put_off(stranger: Stranger) -> None:
    answers = [stranger.publish(stranger.sealed(Offer(f"{number}" * 64, 1000, 512, "message", None, 2e9))) for number in range(3)]
    assert [type(answer) for (answer,) in answers] == [Want, Want, Fail]
    assert isinstance(answers[2][0], Fail)
    assert answers[2][0].code == "busy"


def test_a_message_inside_a_transfer_must_be_its_senders(stranger: Stranger) -> None:
    """The offer is signed by pi-1; what it brings is signed by pi-2."""
    foreign = stranger.sealed(REPORT, sender="pi-2", key=KEYS["pi-2"])
    stranger.publish(stranger.sealed(offer_of(BytesSource(foreign), "message", chunk_bytes=1024, round_number=None, expires=2e9)))
    stranger.publish(ChunkFrame(short_name(BytesSource(foreign).transfer), 0, foreign).to_bytes())
    assert stranger.refusals == [NotAllowedError]
    assert stranger.coordinator.counted == 0


def test_a_storm_of_noise_and_offers_does_not_keep_the_others_waiting(tmp_path: Path) -> None:
    stranger = Stranger(tmp_path / "coordinator")
    honest = Side("pi-2", tmp_path / "device", stranger.pipe)
    for number in range(300):
        name = f"{number:032x}" * 2
        payload = stranger.sealed(Offer(name, 60_000_000, 512, "message", None, 2e9, np.zeros((58, 32), np.uint8)))
        stranger.pipe.carry(Packet(TOPICS.up("pi-1"), payload if number % 2 else b"noise"))
    honest.deliverer.send(big_update(), expires=stranger.pipe.clock() + 60)
    run([honest, stranger.coordinator], 2)
    assert honest.of(Settled)[0].receipt.accepted
    assert stranger.coordinator.deliverer._transfers.inflow.open <= 2
    assert sum(file.stat().st_blocks * 512 for file in (tmp_path / "coordinator" / "content").rglob("*")) <= 2 * 61_000_000


def test_a_flood_is_looked_at_no_faster_than_the_limit(tmp_path: Path) -> None:
    stranger = Stranger(tmp_path / "coordinator")
    honest = Side("pi-2", tmp_path / "device", stranger.pipe)
    payload = stranger.sealed(REPORT)
    for _ in range(3000):
        stranger.pipe.carry(Packet(TOPICS.up("pi-1"), payload))
    honest.deliverer.send(REPORT, expires=stranger.pipe.clock() + 60)
    run([honest, stranger.coordinator], 1)
    assert honest.of(Settled)[0].receipt.accepted
    limit = stranger.coordinator.deliverer.rate_limit
    assert limit.dropped >= 3000 - limit.burst - 2 * limit.per_second
    run([stranger.coordinator], 2)
    assert len(stranger.publish(payload)) == 1  # who slows down is heard again


def offered(inflow: Inflow, peer: str, size: int, number: int, now: float = 0.0) -> str:
    groups = np.zeros((-(-size // 2**20), 32), np.uint8) if size > 2**20 else np.zeros((0, 32), np.uint8)
    outputs = inflow.offered(peer, Offer(f"{number:032x}" * 2, size, 32_768, "message", None, 2e9, groups), now, 1e9)
    answers = [output.message for output in outputs if isinstance(output, Outgoing)]
    return answers[0].code if isinstance(answers[0], Fail) else "taken"


def test_bytes_an_hour_are_counted_for_each_device_and_forgotten_after_it(tmp_path: Path) -> None:
    inflow = Inflow(tmp_path, TransferLimits(open=100, bytes_per_hour=2_000_000))
    assert [offered(inflow, "pi-1", 900_000, number) for number in range(3)] == ["taken", "taken", "quota"]
    assert offered(inflow, "pi-2", 900_000, 3) == "taken"
    assert offered(inflow, "pi-1", 900_000, 4, 3601.0) == "taken"


def test_what_does_not_fit_into_memory_goes_to_disk(tmp_path: Path) -> None:
    inflow = Inflow(tmp_path, TransferLimits(open=100, memory_bytes=1_500_000))
    assert [offered(inflow, f"pi-{number}", 900_000, number) for number in range(2)] == ["taken", "taken"]
    assert [path.name for path in tmp_path.rglob("*.part")] == [f"{1:032x}" * 2 + ".part"]


def test_what_an_earlier_process_left_is_swept_away(tmp_path: Path) -> None:
    inflow = Inflow(tmp_path, TransferLimits(memory_content=0))
    names = [f"{number:032x}" * 2 for number in range(2)]
    offered(inflow, "pi-1", 1000, 0)
    (tmp_path / "pi-1" / "messages" / names[1]).write_bytes(b"a message that was read")
    (tmp_path / "pi-1" / "content").mkdir()
    (tmp_path / "pi-1" / "content" / names[1]).write_bytes(b"a bundle in use")
    inflow.close()
    Inflow(tmp_path).sweep(1.0)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [names[1]]
    assert (tmp_path / "pi-1" / "content" / names[1]).exists()


def test_a_full_disk_puts_an_offer_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    assert offered(Inflow(tmp_path, TransferLimits(memory_content=0)), "pi-1", 1000, 1) == "busy"


def test_a_disk_that_fills_on_the_way_puts_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inflow = Inflow(tmp_path, TransferLimits(memory_content=0))
    content = bytes(1000)
    offer = offer_of(BytesSource(content), "message", chunk_bytes=512, round_number=None, expires=2e9)
    inflow.offered("pi-1", offer, 0.0, 1e9)

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", refuse)
    outputs = inflow.chunk("pi-1", ChunkFrame(short_name(offer.transfer), 0, content[:512]), 0.1)
    assert [output.code for output in outputs if isinstance(output, Broken)] == ["busy"]
    assert inflow.open == 0


def test_a_coordinator_may_refuse_an_offer_by_what_it_says(tmp_path: Path) -> None:
    stranger = Stranger(tmp_path)
    stranger.coordinator.deliverer.admit = lambda peer, offer: ("closed", f"{peer}: no round is open")
    (answer,) = stranger.publish(stranger.sealed(Offer("0" * 64, 1000, 512, "message", None, 2e9)))
    assert isinstance(answer, Receipt)
    assert (answer.code, answer.reason) == ("closed", "pi-1: no round is open")


def test_an_envelope_reaches_the_application_once(stranger: Stranger) -> None:
    payload = stranger.sealed(REPORT)
    for _ in range(3):
        stranger.publish(payload)
    assert len(stranger.coordinator.of(Envelope)) == 1
