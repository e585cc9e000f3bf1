"""An outbox keeps what it was given, over restarts, and stays within its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.database import DatabaseFileError
from protocol.outbox import SPAN, Draft, Outbox, OutboxFullError, Place
from protocol.resending import Resending

NOW = 1_800_000_000.0


def put(outbox: Outbox, payload: bytes = b"x", expires: float = NOW + 60, droppable: bool = False) -> Place:
    return outbox.put(lambda _: payload, peer="coordinator", kind="test/1", expires=expires, droppable=droppable)


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    box = Outbox(tmp_path / "outbox.db", 3, most_messages=10, most_bytes=1000)
    yield box
    box.close()


def test_a_message_waits_until_it_is_settled(outbox: Outbox) -> None:
    first, second = put(outbox, b"one"), put(outbox, b"two")
    assert (first, second) == (Place(3, 1), Place(3, 2))
    assert [waiting.place for waiting in outbox.pending(NOW)] == [first, second]
    assert outbox.payload(second) == b"two"
    assert outbox.settle(first) is not None
    assert outbox.settle(first) is None
    assert [waiting.place for waiting in outbox.pending(NOW)] == [second]
    with pytest.raises(KeyError):
        outbox.payload(first)


def test_a_place_of_another_boot_settles_nothing(outbox: Outbox) -> None:
    place = put(outbox)
    assert outbox.settle(Place(2, place.sequence)) is None
    with pytest.raises(KeyError):
        outbox.payload(Place(2, place.sequence))
    assert len(outbox) == 1


def test_the_payload_is_made_for_its_place(outbox: Outbox) -> None:
    place = outbox.put(lambda place: f"{place.boot} {place.sequence}".encode(), peer="p", kind="k", expires=NOW)
    assert outbox.payload(place) == b"3 1"


def test_a_message_that_cannot_be_sealed_leaves_no_trace(outbox: Outbox) -> None:
    def fail(place: Place) -> bytes:
        raise ValueError(place)

    with pytest.raises(ValueError, match="sequence=1"):
        outbox.put(fail, peer="p", kind="k", expires=NOW)
    assert len(outbox) == 0
    assert put(outbox).sequence == 1


def test_everything_outlives_a_restart_and_no_number_comes_twice(tmp_path: Path) -> None:
    places = []
    for boot in range(4, 9):
        outbox = Outbox(tmp_path / "state" / "outbox.db", boot)
        places += [put(outbox, bytes([boot])), put(outbox, bytes([boot]))]
        outbox.settle(places[-1])
        outbox.close()
    outbox = Outbox(tmp_path / "state" / "outbox.db", 9)
    assert len(set(places)) == 10
    assert {place.boot for place in places} == {4}  # that of the process that made the file
    assert [outbox.payload(waiting.place) for waiting in outbox.pending(NOW)] == [bytes([boot]) for boot in range(4, 9)]
    outbox.close()


def test_what_has_expired_is_told_and_not_sent(outbox: Outbox) -> None:
    late, good = put(outbox, expires=NOW), put(outbox, expires=NOW + 1)
    assert [waiting.place for waiting in outbox.pending(NOW)] == [good]
    assert [waiting.place for waiting in outbox.expired(NOW)] == [late]


def test_a_full_outbox_drops_old_reports_and_never_an_update(outbox: Outbox) -> None:
    update = put(outbox, b"update")
    for number in range(3_000):
        put(outbox, b"report %d" % number, droppable=True)
    assert outbox.payload(update) == b"update"
    assert [waiting.place for waiting in outbox.pending(NOW)] == [update]  # the reports are far above it, and go out later
    outbox.settle(update)
    assert [outbox.payload(waiting.place) for waiting in outbox.pending(NOW)] == [b"report %d" % number for number in range(2991, 3_000)]


def test_an_outbox_full_of_updates_takes_no_more(outbox: Outbox) -> None:
    update = put(outbox, b"update")
    for _ in range(3):
        put(outbox, b"report", droppable=True)
    for _ in range(9):
        put(outbox, b"another")
    with pytest.raises(OutboxFullError, match="wait until"):
        put(outbox, b"one too many")
    assert outbox.payload(update) == b"update"
    assert len(outbox) == 10


def test_a_full_outbox_counts_bytes_too(outbox: Outbox) -> None:
    put(outbox, bytes(400), droppable=True)
    put(outbox, bytes(400))
    put(outbox, bytes(500))
    assert [waiting.size for waiting in outbox.pending(NOW)] == [400, 500]
    with pytest.raises(OutboxFullError):
        put(outbox, bytes(101))
    with pytest.raises(OutboxFullError):
        put(outbox, bytes(1001))


def test_numbers_stay_within_the_receivers_window(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", 1, most_messages=5000)
    oldest = put(outbox)
    for _ in range(SPAN + 50):
        outbox.settle(put(outbox))
    beyond = put(outbox)
    assert [waiting.place for waiting in outbox.pending(NOW)] == [oldest]
    outbox.settle(oldest)
    assert [waiting.place for waiting in outbox.pending(NOW)] == [beyond]
    outbox.close()


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + bytes(5000)])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "outbox.db").write_bytes(content)
    with pytest.raises(DatabaseFileError, match=r"outbox\.db"):
        Outbox(tmp_path / "outbox.db", 1)
    assert (tmp_path / "outbox.db").read_bytes() == content


def test_two_processes_cannot_have_one_outbox(outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(outbox)
    monkeypatch.setattr("protocol.database.BUSY_SECONDS", 0.1)
    with pytest.raises(DatabaseFileError, match="locked"):
        Outbox(tmp_path / "outbox.db", 4)


@given(st.lists(st.tuples(st.sampled_from(["put", "report", "settle", "restart"]), st.integers(0, 200)), max_size=40))
def test_any_history_leaves_what_a_list_would(tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int]]) -> None:
    path = tmp_path_factory.mktemp("history") / "outbox.db"
    outbox, model, used = Outbox(path, 1, 8, 600), dict[Place, tuple[int, bool]](), set[Place]()
    for action, value in history:
        if action == "restart":
            outbox.close()
            outbox = Outbox(path, 1, 8, 600)
        elif action == "settle" and model:
            place = sorted(model)[value % len(model)]
            assert outbox.settle(place) is not None
            del model[place]
        elif action in ("put", "report"):
            try:
                place = put(outbox, bytes(value), droppable=action == "report")
            except OutboxFullError:
                fixed = [size for size, droppable in model.values() if not droppable]
                assert len(fixed) + 1 > 8 or sum(fixed) + value > 600
                continue
            assert place not in used
            used.add(place)
            model[place] = (value, action == "report")
            for old in sorted(model):
                if (len(model) > 8 or sum(size for size, _ in model.values()) > 600) and model[old][1]:
                    del model[old]
        assert [(waiting.place, waiting.size) for waiting in outbox.pending(NOW)] == [(place, model[place][0]) for place in sorted(model)]
    outbox.close()


def test_a_peer_that_is_away_keeps_only_its_own_waiting(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox.db", 1, most_messages=5000)
    for number in range(SPAN + 50):
        place = outbox.put(lambda _: b"", peer="away" if number < 20 else "here", kind="k", expires=NOW + 1)
        if 20 <= number < SPAN:
            outbox.settle(place)
    pending = outbox.pending(NOW)
    assert sum(waiting.peer == "here" for waiting in pending) == 50
    due = Resending(lambda: 0.5).due(pending, 16, 0.0)
    assert [waiting.peer for waiting in due] == ["away"] * 16 + ["here"] * 16
    outbox.close()


def test_many_messages_become_durable_together_or_not_at_all(outbox: Outbox) -> None:
    places = outbox.put_all([Draft(lambda place: b"%d" % place.sequence, f"pi-{number}", "k") for number in range(6)], expires=NOW + 1)
    assert [place.sequence for place in places] == [1, 2, 3, 4, 5, 6]
    assert [(waiting.peer, outbox.payload(waiting.place)) for waiting in outbox.pending(NOW)][-1] == ("pi-5", b"6")
    with pytest.raises(OutboxFullError):
        outbox.put_all([Draft(lambda _: b"", "pi-1", "k") for _ in range(5)], expires=NOW + 1)
    assert len(outbox) == 6
    assert put(outbox).sequence == 7
