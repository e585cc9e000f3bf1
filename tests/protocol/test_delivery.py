"""What one side sends the other has once, or the sender knows why not: over a pipe that loses, repeats and reorders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from protocol.delivery import Fetched, NotFetched, Refusal, Settled
from protocol.envelope import Envelope
from protocol.messages import EvaluationReport, ParameterUpdate
from protocol.topics import COORDINATOR
from tests.protocol.lossy import CALM, STORM, Pipe, Weather
from tests.protocol.samples import parameter_update
from tests.protocol.sides import Side, run

REPORT = EvaluationReport(1, 80, 0.75, None)
Pair = tuple[Side, Side]


def big_update(size: int = 100_000) -> ParameterUpdate:
    values = np.random.default_rng(size).normal(size=size // 4).astype(np.float32)
    return parameter_update(tensors={"weight": values})


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Pair]:
    def pair(weather: Weather = CALM, seed: int = 0) -> Pair:
        pipe = Pipe(seed, weather)
        return Side("pi-1", tmp_path / "device", pipe), Side(COORDINATOR, tmp_path / "coordinator", pipe)

    return pair


def test_a_small_message_is_delivered_and_answered(make: Callable[..., Pair]) -> None:
    device, coordinator = make()
    place = device.deliverer.send(REPORT, expires=device.pipe.clock() + 60)
    run([device, coordinator], 1)
    (settled,) = device.of(Settled)
    assert settled.waiting.place == place
    assert settled.receipt.accepted
    assert coordinator.counted == 1
    assert len(device.outbox) == 0


def test_a_large_message_goes_in_pieces_and_is_the_same(make: Callable[..., Pair]) -> None:
    device, coordinator = make()
    update = big_update()
    device.deliverer.send(update, expires=device.pipe.clock() + 60)
    run([device, coordinator], 2)
    (envelope,) = coordinator.of(Envelope)
    np.testing.assert_array_equal(envelope.message.tensors["weight"], update.tensors["weight"])
    assert device.of(Settled)[0].receipt.accepted


@pytest.mark.parametrize("seed", range(8))
def test_in_a_storm_each_message_counts_once(make: Callable[..., Pair], seed: int) -> None:
    device, coordinator = make(STORM, seed)
    places = {device.deliverer.send(REPORT, expires=device.pipe.clock() + 900) for _ in range(12)}
    places |= {device.deliverer.send(big_update(), expires=device.pipe.clock() + 900) for _ in range(2)}
    run([device, coordinator], 300, 0.2)
    assert {settled.waiting.place for settled in device.of(Settled) if settled.receipt.accepted} == places
    assert coordinator.counted == len(places)
    assert not coordinator.of(Refusal)


@pytest.mark.parametrize("seed", range(4))
def test_both_sides_are_killed_again_and_again(make: Callable[..., Pair], seed: int) -> None:
    device, coordinator = make(Weather(lost=0.1, twice=0.1, jitter=0.1), seed)
    expires = device.pipe.clock() + 3000
    sent = 0
    for _ in range(12):
        side = device.pipe.random.choice([device, coordinator])
        side.kill()
        side.start()
        device.deliverer.send(big_update(200_000) if sent % 4 == 0 else REPORT, expires=expires)
        sent += 1
        run([device, coordinator], device.pipe.random.uniform(0, 1.5), 0.05)
    run([device, coordinator], 200, 0.5)
    assert coordinator.counted == sent
    assert len(device.outbox) == 0


def test_a_refusal_comes_with_its_code_and_is_final(make: Callable[..., Pair]) -> None:
    device, coordinator = make()
    coordinator.verdict = ("late", "the round is closed")
    device.deliverer.send(REPORT, expires=device.pipe.clock() + 60)
    run([device, coordinator], 5)
    (settled,) = device.of(Settled)
    assert (settled.receipt.accepted, settled.receipt.code, settled.receipt.reason) == (False, "late", "the round is closed")
    assert len(coordinator.of(Envelope)) == 1


def test_a_message_for_nobody_ends_when_it_expires(make: Callable[..., Pair]) -> None:
    device, _ = make()
    device.deliverer.send(REPORT, expires=device.pipe.clock() + 30)
    run([device], 29, 1)
    assert not device.of(Settled)
    attempts = len(device.port.sent)
    run([device], 3, 1)
    assert [settled.receipt for settled in device.of(Settled)] == [None]
    assert 4 <= attempts <= 8  # 2 s x 1.6^k


def test_no_more_than_the_window_waits_for_an_answer(make: Callable[..., Pair]) -> None:
    device, _ = make()
    device.port.window = 9
    for _ in range(40):
        device.deliverer.send(REPORT, expires=device.pipe.clock() + 600)
    run([device], 60, 1)
    assert len({packet.payload for packet in device.port.sent}) == 5


def test_content_is_fetched_by_name(make: Callable[..., Pair], tmp_path: Path) -> None:
    device, coordinator = make()
    content = np.random.default_rng(1).bytes(3_000_000)
    (tmp_path / "bundle").write_bytes(content)
    offer = coordinator.deliverer.serve(tmp_path / "bundle", "bundle", round_number=None, expires=device.pipe.clock() + 600)
    device.deliverer.fetch(offer.transfer, expires=device.pipe.clock() + 600)
    run([device, coordinator], 20)
    (fetched,) = device.of(Fetched)
    assert fetched.path.read_bytes() == content
    assert fetched.path.name == hashlib.sha256(content).hexdigest()
    device.deliverer.fetch(offer.transfer, expires=device.pipe.clock() + 600)
    run([device], 0.1)
    assert len(device.of(Fetched)) == 2  # it is there already


def test_what_nobody_serves_is_not_fetched(make: Callable[..., Pair]) -> None:
    device, coordinator = make()
    device.deliverer.fetch("0" * 64, expires=device.pipe.clock() + 60)
    run([device, coordinator], 1)
    assert [event.code for event in device.of(NotFetched)] == ["unknown"]


def test_what_cannot_come_ends_at_its_deadline(make: Callable[..., Pair]) -> None:
    device, _ = make()
    device.deliverer.fetch("0" * 64, expires=device.pipe.clock() + 60)
    run([device], 61, 1)
    assert [event.code for event in device.of(NotFetched)] == ["expired"]


@pytest.mark.parametrize("seed", range(3))
def test_a_fetch_goes_on_after_kills_without_beginning_anew(make: Callable[..., Pair], tmp_path: Path, seed: int) -> None:
    device, coordinator = make(Weather(lost=0.02, delay=0.02, jitter=0.02), seed)
    content = np.random.default_rng(seed).bytes(6_000_000)
    (tmp_path / "bundle").write_bytes(content)
    expires = device.pipe.clock() + 6000
    served = 0
    for side in [device, coordinator] * 4:
        offer = coordinator.deliverer.serve(tmp_path / "bundle", "bundle", round_number=None, expires=expires)
        device.deliverer.fetch(offer.transfer, expires=expires)
        run([device, coordinator], 0.7)
        side.kill()
        side.start()
    coordinator.deliverer.serve(tmp_path / "bundle", "bundle", round_number=None, expires=expires)
    device.deliverer.fetch(offer.transfer, expires=expires)
    run([device, coordinator], 60)
    served = sum(len(packet.payload) for packet in coordinator.port.sent)
    assert device.of(Fetched)[0].path.read_bytes() == content
    assert served < len(content) + 8 * 2**20  # each of the eight kills costs at most a group and what is on its way


def test_a_broker_that_takes_less_gets_smaller_pieces(make: Callable[..., Pair]) -> None:
    device, coordinator = make()
    device.port.maximum_payload = 2_000
    update = big_update(40_000)
    device.deliverer.send(update, expires=device.pipe.clock() + 60)
    run([device, coordinator], 10)
    assert device.of(Settled)[0].receipt.accepted
    assert max(len(packet.payload) for packet in device.port.sent) <= 2_000


def test_a_limit_that_appears_on_the_way_is_kept(make: Callable[..., Pair]) -> None:
    device, coordinator = make()
    device.deliverer.send(big_update(800_000), expires=device.pipe.clock() + 60)
    run([device, coordinator], 0.05, 0.01)
    device.port.maximum_payload = 5_000
    before = len(device.port.sent)
    run([device, coordinator], 20)
    assert device.of(Settled)[0].receipt.accepted
    assert max(len(packet.payload) for packet in device.port.sent[before:]) <= 5_000


def exchange(folder: Path, lost: int) -> tuple[Side, Side, int]:
    """A report and a large update go up and some content comes down, while one message of all is lost."""
    pipe = Pipe(0)
    pipe.drop = lambda number, _: number == lost
    device, coordinator = Side("pi-1", folder / "device", pipe), Side(COORDINATOR, folder / "coordinator", pipe)
    (folder / "state").write_bytes(bytes(70_000))
    offer = coordinator.deliverer.serve(folder / "state", "state", round_number=3, expires=pipe.clock() + 600)
    device.deliverer.fetch(offer.transfer, expires=pipe.clock() + 600)
    for message in (REPORT, big_update(40_000)):
        device.deliverer.send(message, expires=pipe.clock() + 600)
    run([device, coordinator], 6, 0.1)
    return device, coordinator, pipe.count


def test_any_single_message_may_be_lost(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    total = exchange(tmp_path / "none", 0)[2]
    assert total > 10
    for lost in range(1, total + 1):
        (tmp_path / str(lost)).mkdir()
        device, coordinator, _ = exchange(tmp_path / str(lost), lost)
        assert coordinator.counted == 2, lost
        assert [settled.receipt.accepted for settled in device.of(Settled)] == [True, True], lost
        assert len(device.of(Fetched)) == 1, lost


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 124))
def test_storm_and_kills_together(tmp_path: Path, seed: int) -> None:
    """Everything at once, by seed: losses, repeats, orders, cuts, kills of both sides, and limits that shrink."""
    pipe = Pipe(seed, STORM)
    device, coordinator = Side("pi-1", tmp_path / "device", pipe), Side(COORDINATOR, tmp_path / "coordinator", pipe)
    content, expires = pipe.random.randbytes(2_500_000), pipe.clock() + 20_000
    (tmp_path / "state").write_bytes(content)
    sent = 0
    for _ in range(10):
        offer = coordinator.deliverer.serve(tmp_path / "state", "state", round_number=1, expires=expires)
        device.deliverer.fetch(offer.transfer, expires=expires)
        device.deliverer.send(big_update(pipe.random.choice([20_000, 90_000])) if pipe.random.random() < 0.5 else REPORT, expires=expires)
        sent += 1
        run([device, coordinator], pipe.random.uniform(0, 3), 0.05)
        device.port.maximum_payload = pipe.random.choice([2**18, 2**16, 5_000])
        side = pipe.random.choice([device, coordinator])
        side.kill()
        side.start()
    coordinator.deliverer.serve(tmp_path / "state", "state", round_number=1, expires=expires)
    device.deliverer.fetch(offer.transfer, expires=expires)
    run([device, coordinator], 400, 0.5)
    assert coordinator.counted == sent
    assert len(device.outbox) == 0
    assert device.of(Fetched)[-1].path.read_bytes() == content
    assert not device.of(NotFetched)


def test_large_messages_take_turns(make: Callable[..., Pair]) -> None:
    device, coordinator = make()
    for _ in range(7):
        device.deliverer.send(big_update(300_000), expires=device.pipe.clock() + 600)
    most = 0
    while coordinator.counted < 7 and device.pipe.now < 60:
        run([device, coordinator], 0.1)
        most = max(most, len(device.deliverer._transfers.outflow._sessions))
    assert coordinator.counted == 7
    assert most == 2


def test_many_messages_go_out_at_once(make: Callable[..., Pair]) -> None:
    device, coordinator = make()
    places = coordinator.deliverer.send_all([(REPORT, "pi-1"), (REPORT, "pi-2")], expires=device.pipe.clock() + 60)
    assert len(places) == 2
    run([coordinator, device], 1)
    assert [type(event) for event in device.events] == [Envelope]
    assert {packet.topic.split("/")[4] for packet in coordinator.port.sent} == {"pi-1", "pi-2"}
