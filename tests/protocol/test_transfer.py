"""The two machines of a transfer, step by step: what they say, when they say it again, and when they give up."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.backoff import Backoff
from protocol.message_checks import ReasonCode
from protocol.messages import Cancel, Done, Fail, Offer, Want
from protocol.transfer import Action, Ended, Finish, Say, SendChunk, TransferReceiver, TransferSender, Verify, Write
from protocol.transfer_layout import CHUNK_SIZES, GROUP_BYTES, MAXIMUM_TRANSFER_BYTES, group_bytes, group_count, largest_chunk
from protocol.transfer_messages import MAXIMUM_CREDIT, WANT_CHUNKS
from protocol.transfer_pace import LEAST_CREDIT, Pace
from tests.fuzz.machines import CHUNK, GROUP, Link, calm, small_groups

CHUNK_BYTES = 32 * 1024
NAME = "0" * 64


def offer(size: int = 10 * CHUNK_BYTES, chunk_bytes: int = CHUNK_BYTES) -> Offer:
    count = group_count(size)
    return Offer(NAME, size, chunk_bytes, "state", None, 2e9, np.zeros((count if count > 1 else 0, 32), np.uint8))


def steady() -> Backoff:
    return Backoff(lambda: 0.5)  # no jitter


def sender(**changes: object) -> TransferSender:
    machine = TransferSender(offer(), 1000.0, backoff=steady(), **changes)  # type: ignore[arg-type]
    machine.start(0.0)
    return machine


def receiver(wanted: Offer | None = None, **changes: object) -> TransferReceiver:
    return TransferReceiver(wanted or offer(), 1000.0, backoff=steady(), **changes)  # type: ignore[arg-type]


def wants(actions: list[Action]) -> list[Want]:
    return [action.message for action in actions if isinstance(action, Say) and isinstance(action.message, Want)]


def ends(actions: list[Action]) -> list[ReasonCode]:
    return [action.code for action in actions if isinstance(action, Ended)]


def test_an_unanswered_offer_is_repeated_more_and_more_slowly() -> None:
    machine, times, now = sender(), [0.0], 0.0
    while True:
        now = machine.due
        actions = machine.tick(now)
        if ends(actions):
            break
        assert isinstance(actions[0], Say)
        times.append(now)
    gaps = np.diff(times)
    np.testing.assert_allclose(gaps[:6], 2.0 * 1.6 ** np.arange(6))
    assert gaps.max() == 60.0
    assert now == 1000.0
    assert ends(actions) == ["expired"]


def test_waits_differ_by_chance_and_stay_near() -> None:
    waits = [Backoff().wait() for _ in range(200)]
    assert len(set(waits)) > 100
    assert 1.5 <= min(waits) < max(waits) <= 2.5


def test_a_sender_sends_what_is_asked_for_and_no_more() -> None:
    machine = sender()
    assert machine.next_chunk() is None
    assert machine.hear(Want.of_chunks(NAME, 4, CHUNK_BYTES, [0, 3, 9, 10, 500]), 1.0) == []
    machine.hear(Want.of_chunks(NAME, 4, CHUNK_BYTES, [3, 4]), 1.0)
    found = [machine.next_chunk() for _ in range(6)]
    assert found == [SendChunk(chunk * CHUNK_BYTES, CHUNK_BYTES) for chunk in (0, 3, 9, 4)] + [None, None]


def test_a_sender_keeps_little_in_mind_whoever_asks() -> None:
    machine = TransferSender(offer(GROUP_BYTES * 20, 512), 1000.0)
    for base in range(0, 40_000, WANT_CHUNKS):
        machine.hear(Want.of_chunks(NAME, MAXIMUM_CREDIT, 512, list(range(base, base + WANT_CHUNKS))), 0.0)
    assert machine.waiting_chunks == MAXIMUM_CREDIT


def test_the_last_chunk_is_as_long_as_what_is_left() -> None:
    machine = TransferSender(offer(CHUNK_BYTES + 7), 1000.0)
    machine.hear(Want.of_chunks(NAME, 4, CHUNK_BYTES, [1]), 0.0)
    assert machine.next_chunk() == SendChunk(CHUNK_BYTES, 7)


def test_a_request_for_larger_chunks_is_answered_with_the_offer() -> None:
    machine = TransferSender(offer(chunk_bytes=1024), 1000.0)
    actions = machine.hear(Want.of_chunks(NAME, 4, CHUNK_BYTES, [0]), 0.0)
    assert isinstance(actions[0], Say)
    assert machine.next_chunk() is None


@pytest.mark.parametrize(
    ("message", "code"), [(Done(NAME), "accepted"), (Fail(NAME, "quota", "full"), "quota"), (Cancel(NAME, "no"), "cancelled")]
)
def test_a_sender_ends_once(message: Done | Fail | Cancel, code: str) -> None:
    machine = sender()
    machine.hear(Want.of_chunks(NAME, 4, CHUNK_BYTES, [0]), 0.0)
    assert ends(machine.hear(message, 1.0)) == [code]
    assert machine.next_chunk() is None
    assert machine.hear(message, 2.0) == machine.tick(2000.0) == machine.resize(512, 3.0) == []


def test_a_receiver_asks_again_for_what_does_not_come() -> None:
    machine = receiver()
    (first,) = wants(machine.start(0.0))
    assert first.chunks() == [0, 1, 2, 3]
    assert machine.chunk(CHUNK_BYTES, bytes(CHUNK_BYTES), 0.1) == [Write(CHUNK_BYTES, bytes(CHUNK_BYTES))]
    assert machine.tick(1.0) == []
    (again,) = wants(machine.tick(machine.due))
    assert again.chunks()[:3] == [0, 2, 3]
    assert machine.due > 2.1


def test_what_is_on_its_way_is_not_asked_for_twice() -> None:
    machine, asked = receiver(), list[int]()
    requests = wants(machine.start(0.0))
    now = 0.0
    while requests:
        want = requests.pop()
        asked += want.chunks()
        for chunk in want.chunks():
            now += 0.01
            requests += wants(machine.chunk(chunk * CHUNK_BYTES, bytes(CHUNK_BYTES), now))
    assert sorted(asked) == list(range(10))


def test_after_a_reconnect_it_waits_a_moment_for_what_the_broker_kept() -> None:
    machine = receiver()
    machine.start(0.0)
    machine.restarted(0.5)
    assert 0.5 < machine.due < 1.0
    assert wants(machine.tick(machine.due))


@pytest.mark.parametrize(
    ("offset", "length"), [(1, 512), (0, 100), (512 * 20, 512), (0, 0), (512 * 19, 1024), (GROUP - 512, 1024), (-512, 512), (9999, 1)]
)
def test_a_piece_that_cannot_be_is_not_written(monkeypatch: pytest.MonkeyPatch, offset: int, length: int) -> None:
    small_groups(monkeypatch)
    machine = receiver(offer(512 * 19 + 5, 512))
    machine.start(0.0)
    assert machine.chunk(offset, bytes(length), 0.1) == []
    assert machine.chunk(512 * 19, bytes(5), 0.1)[0] == Write(512 * 19, bytes(5))


def test_three_bad_groups_end_it() -> None:
    machine = receiver(offer(CHUNK_BYTES))
    machine.start(0.0)
    for attempt in (1, 2, 3):
        assert Verify(0) in machine.chunk(0, bytes(CHUNK_BYTES), float(attempt))
        actions = machine.verified(0, good=False, now=float(attempt))
        assert ends(actions) == ([] if attempt < 3 else ["bad-digest"])
        assert len(wants(actions)) == (1 if attempt < 3 else 0)
    assert machine.chunk(0, bytes(CHUNK_BYTES), 5.0) == []


def test_a_verified_group_is_never_written_again() -> None:
    machine = receiver(offer(2 * GROUP_BYTES), stored={0})
    machine.start(0.0)
    assert machine.chunk(0, b"\xff" * 512, 0.1) == []


def test_what_is_stored_is_finished_at_once_and_a_wrong_whole_is_told() -> None:
    machine = receiver(stored={0})
    assert machine.start(0.0) == [Finish()]
    assert ends(machine.finished(good=False)) == ["bad-digest"]
    machine = receiver(stored={0})
    machine.start(0.0)
    assert machine.finished(good=True) == [Say(Done(NAME)), Ended("accepted")]


def test_the_same_name_with_other_digests_is_refused() -> None:
    machine = receiver(offer(2 * GROUP_BYTES))
    machine.start(0.0)
    other = Offer(NAME, 2 * GROUP_BYTES, CHUNK_BYTES, "state", None, 2e9, np.ones((2, 32), np.uint8))
    assert ends(machine.offered(other, 1.0)) == ["malformed"]


def test_smaller_chunks_are_asked_for_once_they_are_offered() -> None:
    machine = receiver()
    machine.start(0.0)
    machine.chunk(0, bytes(CHUNK_BYTES), 0.1)
    (want,) = wants(machine.offered(offer(chunk_bytes=1024), 0.2))
    assert want.chunk_bytes == 1024
    assert want.chunks()[0] == CHUNK_BYTES // 1024  # what came in large chunks is kept


def test_a_trickle_is_put_off() -> None:
    machine = receiver(offer(20 * GROUP_BYTES), pace=Pace(minimum_rate=1000.0))
    machine.start(0.0)
    for now in range(1, 60):
        machine.chunk(512 * now, bytes(512), float(now))
        assert ends(machine.tick(float(now))) == []
    assert ends(machine.tick(60.5)) == ["too-slow"]


def test_a_deadline_ends_it() -> None:
    machine = receiver()
    machine.start(0.0)
    assert ends(machine.tick(1000.0)) == ["expired"]


def test_the_pace_follows_rate_and_delay() -> None:
    slow, fast, far = Pace(), Pace(), Pace()
    for pace, rate, delay in ((slow, 20e3, 0.01), (fast, 1e6, 0.01), (far, 1e6, 0.6)):
        pace.start(0.0)
        pace.asked(0.0, alone=True)
        now = delay
        for _ in range(100):
            now += CHUNK_BYTES / rate
            pace.progressed(CHUNK_BYTES, now)
    assert slow.credit(CHUNK_BYTES) == LEAST_CREDIT
    assert fast.credit(CHUNK_BYTES) == 8
    assert far.credit(CHUNK_BYTES) == 16
    assert slow.patience(2.0) == pytest.approx(3 * CHUNK_BYTES / 20e3)  # and not 2 s, which a chunk alone takes


def test_losses_are_not_taken_for_a_slow_link() -> None:
    """Every second chunk is lost: waiting for it must not make the next wait longer and longer."""
    machine, now, waits = receiver(offer(200 * CHUNK_BYTES)), 0.0, list[float]()
    requests = wants(machine.start(now))
    for _ in range(40):
        for want in requests:
            for chunk in want.chunks()[::2]:
                now += 0.01
                requests = wants(machine.chunk(chunk * CHUNK_BYTES, bytes(CHUNK_BYTES), now)) or requests
        waits.append(machine.due - now)
        now = machine.due
        requests = wants(machine.tick(now))
    assert max(waits) < 8


def test_sizes_add_up() -> None:
    assert largest_chunk(100) is None
    assert largest_chunk(512) == 512
    assert largest_chunk(10**6) == CHUNK_BYTES
    assert group_count(MAXIMUM_TRANSFER_BYTES) <= 512
    assert all(group_bytes(size) % CHUNK_SIZES[-1] == 0 for size in (1, GROUP_BYTES, 2**29 + 1, MAXIMUM_TRANSFER_BYTES))


def test_a_calm_link_needs_each_chunk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    small_groups(monkeypatch)
    content = np.random.default_rng(0).bytes(40 * CHUNK + 1)
    link = Link(content)
    calm(link)
    assert link.result == content
    assert link.chunks_sent == 41


def test_a_sender_whose_content_is_not_what_it_offers_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    small_groups(monkeypatch)
    link = Link(bytes(3 * GROUP))
    monkeypatch.setattr(link.source, "_data", bytes(GROUP) + b"\1" * GROUP + bytes(GROUP))
    calm(link)
    assert link.result is None
    assert [ended.code for ended in link.ended] == ["bad-digest"]
