"""Each message counts once, whatever the broker repeats and whoever replays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InputError, StaleMessageError
from protocol.freshness import WINDOW, DuplicateMessageError, SequenceGuard, next_boot


def test_each_message_passes_once() -> None:
    guard = SequenceGuard()
    for sequence in (1, 2, 5, 3):
        guard.admit("device-1", 1, sequence)
    guard.admit("device-2", 1, 1)
    with pytest.raises(DuplicateMessageError):
        guard.admit("device-1", 1, 5)
    guard.admit("device-1", 1, 4)


def test_an_earlier_boot_is_stale_and_no_duplicate() -> None:
    guard = SequenceGuard()
    guard.admit("device-1", 2, 1)
    with pytest.raises(StaleMessageError) as caught:
        guard.admit("device-1", 1, 9)
    assert not isinstance(caught.value, DuplicateMessageError)
    guard.admit("device-1", 3, 1)


def test_beyond_the_window_nobody_can_tell() -> None:
    guard = SequenceGuard()
    guard.admit("device-1", 1, WINDOW)
    guard.admit("device-1", 1, 1)
    with pytest.raises(StaleMessageError) as caught:
        guard.admit("device-1", 1, 0)
    assert not isinstance(caught.value, DuplicateMessageError)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000)), max_size=60))
def test_no_message_ever_passes_twice_and_memory_is_bounded(attempts: list[tuple[int, int]]) -> None:
    guard, passed = SequenceGuard(), []
    for boot, sequence in attempts:
        try:
            guard.admit("device-1", boot, sequence)
        except StaleMessageError:
            continue
        passed.append((boot, sequence))
    assert len(passed) == len(set(passed))
    assert [boot for boot, _ in passed] == sorted(boot for boot, _ in passed)
    assert all(len(sender.seen) <= WINDOW for sender in guard._senders.values())


def test_the_boot_counter_grows_over_restarts(tmp_path: Path) -> None:
    assert [next_boot(tmp_path / "state" / "boot") for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("content", [b"", b"-1", b"one", b"9" * 100, "²".encode()])
def test_a_damaged_boot_counter_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "boot").write_bytes(content)
    with pytest.raises(InputError):
        next_boot(tmp_path / "boot")
    assert (tmp_path / "boot").read_bytes() == content
