"""Versions, limits, window and waits of a connection, each by itself."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from protocol.errors import DeadlineError, OversizeMessageError, TransportError
from protocol.mqtt import Waits
from protocol.mqtt_limits import MAXIMUM_PAYLOAD_BYTES, Limits
from protocol.mqtt_version import MQTT_3_1_1, MQTT_5, VersionChoice
from protocol.mqtt_window import Flight, Window
from protocol.topics import matches


def test_only_a_refusal_of_the_version_changes_it() -> None:
    choice = VersionChoice()
    for _ in range(5):
        choice.failed()
        choice.closed()
        choice.refused(0x87)
    assert choice.version == MQTT_5
    choice.refused(0x84)
    assert choice.version == MQTT_3_1_1
    choice.accepted()
    choice.lost()
    assert choice.version == MQTT_3_1_1


def test_a_connection_closed_twice_in_a_row_is_a_suspicion_that_one_connection_outlives() -> None:
    choice = VersionChoice()
    choice.closed()
    choice.closed()
    assert choice.version == MQTT_3_1_1
    choice.accepted()
    choice.lost()
    assert choice.version == MQTT_5
    choice.accepted()
    for _ in range(5):
        choice.closed()
    assert choice.version == MQTT_5  # it has been spoken, so it is known


def test_what_the_broker_tells_is_kept_to() -> None:
    limits = Limits()
    limits.told(SimpleNamespace(MaximumPacketSize=10_000, ReceiveMaximum=3, MaximumQoS=0, RetainAvailable=0, ServerKeepAlive=7))
    assert (limits.window, limits.quality, limits.keepalive) == (3, 0, 7)
    assert limits.payload < 10_000 - 200
    assert limits.is_proven(limits.payload)
    with pytest.raises(OversizeMessageError):
        limits.check("a", bytes(10_000), retain=False)
    with pytest.raises(TransportError, match="keeps no retained"):
        limits.check("a", b"", retain=True)
    limits.told(SimpleNamespace())
    assert (limits.window, limits.quality, limits.payload) == (20, 1, MAXIMUM_PAYLOAD_BYTES)


def test_two_breaks_over_one_size_halve_the_largest_payload_until_it_is_too_large() -> None:
    limits = Limits()
    limits.broke(32_796, certain=False)
    assert limits.payload == MAXIMUM_PAYLOAD_BYTES
    limits.broke(32_796, certain=False)
    assert limits.payload == 32_768
    limits.broke(20_000, certain=True)
    assert limits.payload == 16_384
    for _ in range(20):
        limits.broke(limits.payload, certain=False)
    assert limits.payload == 4096


def test_what_has_passed_is_not_to_blame() -> None:
    limits = Limits()
    limits.broke(10_000, certain=False)
    limits.passed(10_000)
    for _ in range(5):
        limits.broke(10_000, certain=False)
    assert limits.payload == MAXIMUM_PAYLOAD_BYTES


def test_a_full_window_waits_for_answers_and_no_longer_than_the_deadline() -> None:
    limits = Limits(window=2)
    window = Window(threading.Condition(), limits)
    flights = [Flight(1, awaited=False) for _ in range(3)]
    for number in (1, 2):
        assert window.enter(1, time.monotonic() + 1)
        window.depart(number, flights[number])
    with pytest.raises(DeadlineError, match="no room"):
        window.enter(1, time.monotonic() + 0.05)
    threading.Timer(0.05, lambda: window.answered(1, 0)).start()
    assert window.enter(1, time.monotonic() + 5)


def test_an_answer_that_comes_before_its_number_is_known_counts() -> None:
    window = Window(threading.Condition(), Limits())
    assert window.enter(1, time.monotonic() + 1)
    window.answered(7, 0x10)
    flight = Flight(1, awaited=True)
    window.depart(7, flight)
    assert window.wait(flight, time.monotonic()) == 0x10


def test_an_unproven_size_goes_alone() -> None:
    window = Window(threading.Condition(), Limits())
    assert window.enter(50_000, time.monotonic() + 1)
    window.depart(1, Flight(50_000, awaited=False))
    with pytest.raises(DeadlineError):
        window.enter(1, time.monotonic() + 0.02)
    window.answered(1, 0)
    for number in range(2, 6):  # proven now: they go together
        assert window.enter(50_000, time.monotonic() + 0.02)
        window.depart(number, Flight(50_000, awaited=False))
    assert window.close() == [50_000] * 4
    assert not window.enter(1, time.monotonic() + 1)


def test_waits_are_bounded_by_what_was_seen_of_the_broker() -> None:
    waits = Waits()
    assert max(waits.next(was_ready=False, lasted=0) for _ in range(300)) > 30
    assert waits.longest == 60
    waits.next(was_ready=True, lasted=1)
    assert waits.longest == 2
    assert max(waits.next(was_ready=False, lasted=0) for _ in range(300)) <= 12
    waits.next(was_ready=True, lasted=100)
    assert waits.longest == 0.2


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a/+/up", "a/b/up", True),
        ("a/+/up", "a/b/c/up", False),
        ("a/#", "a/b/c", True),
        ("a/#", "a", True),
        ("a/#", "b", False),
        ("#", "a/b", True),
        ("a/b", "a/b", True),
        ("a/b", "a/bc", False),
        ("+/b", "/b", True),
    ],
)
def test_filters_match_as_the_standard_says(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected
