"""Rounds without a network: what closes them, who is asked, what is refused, and that order and restarts change nothing."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import DivergenceError, InputError, RunFolderError
from protocol.messages import EvaluationReport, PrototypeUpdate
from tests.trainer.coordinator.bench import (
    DEVICES,
    FIRST,
    METHOD,
    PLAN,
    START,
    envelope,
    expected_states,
    rounds_in,
    send,
    trained,
    update_of,
)
from trainer.coordinator.journal import PAUSED
from trainer.coordinator.parameter_exchange import ParameterExchange
from trainer.coordinator.prototype_exchange import PrototypeExchange
from trainer.coordinator.rounds import Rounds


def whats(happened: list[Any]) -> list[str]:
    return [step.what for step in happened]


def test_a_round_opens_when_enough_devices_are_there_and_closes_when_all_have_sent(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path)
    assert rounds.advance(["pi-1"], START) == []
    assert whats(rounds.advance(DEVICES, START)) == ["opened"]
    assert rounds.due == START + PLAN.deadline_seconds
    for device in DEVICES:
        assert rounds.advance(DEVICES, START + 1) == []
        assert send(rounds, device).code == "accepted"
    assert whats(rounds.advance(DEVICES, START + 2)) == ["closed", "published", "opened"]
    for device in DEVICES:
        assert send(rounds, device, sequence=2).accepted
    assert whats(rounds.advance(DEVICES, START + 3)) == ["closed", "published", "ended"]
    assert rounds.number == 9
    assert rounds.state == expected_states(2)[1]
    rounds.close()


def test_the_deadline_closes_a_round_with_enough_updates_and_late_ones_are_refused(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path)
    rounds.advance(DEVICES, START)
    late = update_of(rounds, "pi-4")
    send(rounds, "pi-3")
    send(rounds, "pi-0")
    assert rounds.advance(DEVICES, rounds.due) == []
    after = rounds.due + 0.1
    assert rounds.take([envelope("pi-1", update_of(rounds, "pi-1"))], after)[0].code == "late"
    assert whats(rounds.advance(DEVICES, after)) == ["closed", "published", "opened"]
    assert rounds.take([envelope("pi-4", late)], after)[0].code == "late"
    assert rounds.state == expected_states(1, ["pi-0", "pi-3"])[0]
    assert send(rounds, "pi-4", sequence=2, now=after + 1).accepted  # a device that was late takes part in the next round
    rounds.close()


def test_too_few_updates_at_the_deadline_ask_again_and_keep_what_came(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path, replace(PLAN, fraction=0.4, minimum_devices=2))
    rounds.advance(DEVICES, START)
    assert rounds.current is not None
    first, silent = sorted(rounds.current.asked)
    assert send(rounds, first).accepted
    now = rounds.due + 1
    here = [device for device in DEVICES if device != silent]
    assert rounds.advance([first], now) == []  # nobody else is there: the round waits for devices
    assert whats(rounds.advance(here, now)) == ["asked-again"]
    assert rounds.current.attempt == 1
    (other,) = rounds.current.awaited
    assert other not in (first, silent)
    assert rounds.task_for(other).attempt == 1
    assert send(rounds, first, sequence=2, now=now).code == "duplicate"
    assert send(rounds, other, now=now).accepted
    assert whats(rounds.advance(here, now))[:2] == ["closed", "published"]
    assert rounds.state == expected_states(1, [first, other])[0]
    rounds.close()


def test_a_device_that_declines_is_not_waited_for(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path)
    rounds.advance(DEVICES, START)
    for device in DEVICES[:4]:
        send(rounds, device)
    assert rounds.advance(DEVICES, START + 1) == []
    rounds.answered([(6, "pi-4", "taken"), (7, "pi-4", "declined"), (7, "stranger", "declined")])
    assert whats(rounds.advance(DEVICES, START + 1))[0] == "closed"
    rounds.close()


def test_a_pause_stops_deadlines_and_openings_but_loses_no_update(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path)
    rounds.advance(DEVICES, START)
    with rounds.journal.transaction():
        rounds.journal.note(PAUSED, "yes")
    send(rounds, "pi-0")
    assert rounds.advance(DEVICES, START + 50) == []
    for device in DEVICES[1:]:
        assert send(rounds, device).accepted
    assert whats(rounds.advance(DEVICES, START + 60)) == ["closed", "published"]
    with rounds.journal.transaction():
        rounds.journal.note(PAUSED, "no")
    assert whats(rounds.advance(DEVICES, START + 60)) == ["opened"]
    rounds.close()


def test_only_devices_that_are_present_and_take_part_are_asked(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path, replace(PLAN, fraction=0.5), devices=DEVICES[:4])
    rounds.advance([*DEVICES[1:], "stranger"], START)
    assert rounds.current is not None
    assert len(rounds.current.asked) == 2
    assert set(rounds.current.asked) <= set(DEVICES[1:4])
    rounds.close()


def wrong(tree: dict[str, np.ndarray], value: float) -> dict[str, np.ndarray]:
    name = min(tree)
    changed = tree[name].copy()
    changed.flat[0] = value
    return {**tree, name: changed}


def test_each_bad_update_is_refused_whole_with_its_reason(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path, replace(PLAN, fraction=0.8))
    rounds.advance(DEVICES, START)
    assert rounds.current is not None
    (unasked,) = set(DEVICES) - set(rounds.current.asked)
    asked = min(rounds.current.asked)
    tree = dict(update_of(rounds, asked).values())
    missing = {name: tensor for name, tensor in tree.items() if name != min(tree)}
    cases: list[tuple[str, str, dict[str, Any]]] = [
        (asked, "stale", {"round": 8}),
        (asked, "late", {"round": 6}),
        (asked, "stale", {"base": "0" * 64}),
        (unasked, "unselected", {}),
        (asked, "wrong-shape", {"tensors": missing}),
        (asked, "wrong-shape", {"tensors": {**tree, "extra": np.zeros(3, np.float32)}}),
        (asked, "wrong-shape", {"tensors": {**tree, min(tree): np.zeros(3, np.float32)}}),
        (asked, "over-norm", {"tensors": wrong(tree, 1e30)}),
        (asked, "over-norm", {"tensors": wrong(tree, 1e5)}),
        (asked, "malformed", {"sample_count": 10**9}),
    ]
    for sequence, (device, code, changes) in enumerate(cases, 10):
        receipt = send(rounds, device, sequence, **changes)
        assert (receipt.code, receipt.accepted) == (code, False), receipt
        assert len(receipt.reason) > 20
        assert send(rounds, device, sequence).code == code  # the same message gets the same answer, whatever it holds now
    assert rounds.current.counted == {}
    stranger = rounds.take([envelope("stranger", update_of(rounds, asked))], START + 1)[0]
    assert stranger.code == "foreign"
    other = rounds.take(
        [envelope(asked, PrototypeUpdate(7, np.zeros(1, np.int64), np.zeros((1, 2), np.float32), np.ones(1, np.int64)), 99)], START
    )
    assert other[0].code == "refused"
    assert {code: count for code, (count, _) in rounds.journal.refusals().items()} == {
        "stale": 2, "late": 1, "unselected": 1, "wrong-shape": 3, "over-norm": 2, "malformed": 1, "foreign": 1, "refused": 1,
    }  # fmt: skip
    rounds.close()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_never_become_an_update(value: float, tmp_path: Path) -> None:
    from protocol.messages import NotFiniteMessageError

    rounds = rounds_in(tmp_path)
    rounds.advance(DEVICES, START)
    update = update_of(rounds, "pi-1")
    with pytest.raises(NotFiniteMessageError):
        replace(update, tensors=wrong(dict(update.values()), value))
    rounds.close()


def test_three_liars_of_ten_change_nothing(tmp_path: Path) -> None:
    devices = [f"pi-{number}" for number in range(10)]
    rounds = rounds_in(tmp_path, devices=devices)
    rounds.advance(devices, START)
    for sequence, (device, value) in enumerate([("pi-1", 1e30), ("pi-5", -3e38), ("pi-9", 1e12)], 1):
        tree = wrong(dict(update_of(rounds, device).values()), value)
        assert send(rounds, device, sequence, tensors=tree).code == "over-norm"
    honest = [device for device in devices if device not in ("pi-1", "pi-5", "pi-9")]
    for device in honest:
        assert send(rounds, device).accepted
    assert whats(rounds.advance(devices, rounds.due + 1))[:2] == ["closed", "published"]
    assert rounds.state == expected_states(1, honest)[0]
    rounds.close()


def test_smaller_encodings_are_widened_before_they_are_summed(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path)
    rounds.advance(DEVICES, START)
    for device, encoding in zip(DEVICES, ("int8", "float16", "float32", "int8", "float16"), strict=True):
        update = update_of(rounds, device).encoded(encoding)  # type: ignore[arg-type]
        assert rounds.take([envelope(device, update)], START + 1)[0].accepted
    rounds.advance(DEVICES, START + 2)
    exact = expected_states(1)[0]
    from trainer.coordinator.parameter_exchange import decode_state

    for name, tensor in decode_state(rounds.state).items():
        assert float((tensor - decode_state(exact)[name]).abs().max()) < 0.02
    rounds.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_order_duplicates_and_restarts_at_any_point_give_the_same_bits(seed: int, reopen_always: bool) -> None:
    """Whatever order updates come in, however often, and wherever the process ends: each counts once, the states are the same."""
    draws = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder, now = Path(name), START
        told: dict[tuple[str, int], object] = {}
        rounds = rounds_in(folder)
        while True:
            if reopen_always or draws.random() < 0.3:
                rounds.close()
                rounds = rounds_in(folder)
            now += 1
            steps = rounds.advance(draws.sample(DEVICES, len(DEVICES)), now)
            if steps and steps[-1].what == "ended":
                break
            assert rounds.current is not None
            batch = [draws.choice(DEVICES) for _ in range(draws.randrange(1, 6))]
            number = rounds.current.number
            receipts = rounds.take([envelope(device, update_of(rounds, device), number) for device in batch], now)
            for device, receipt in zip(batch, receipts, strict=True):
                assert receipt.code == told.setdefault((device, number), receipt.code) == "accepted"
        counted = [sorted(update.device for update in rounds.journal.updates(number)) for number in (7, 8)]
        assert counted == [sorted(DEVICES)] * 2
        assert rounds.state == expected_states(2)[1]
        rounds.close()


def test_two_updates_of_one_device_in_one_batch_count_once(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path)
    rounds.advance(DEVICES, START)
    update = update_of(rounds, "pi-2")
    batch = [envelope("pi-2", update, 1), envelope("pi-2", update, 1), envelope("pi-2", update, 2), envelope("pi-2", update, 5, boot=0)]
    assert [receipt.code for receipt in rounds.take(batch, START)] == ["accepted", "accepted", "duplicate", "stale"]
    rounds.close()


def test_an_aggregate_that_is_not_finite_leaves_the_round_closed(tmp_path: Path) -> None:
    plan = replace(PLAN, largest_change=1e39, minimum_devices=2)
    rounds = rounds_in(tmp_path, plan, devices=DEVICES[:2])
    rounds.advance(DEVICES, START)
    send(rounds, "pi-0", tensors=wrong(dict(update_of(rounds, "pi-0").values()), 3.4e38))
    send(rounds, "pi-1", tensors=wrong(dict(update_of(rounds, "pi-1").values()), 3.4e38))
    try:
        rounds.advance(DEVICES, START + 1)
    except DivergenceError:
        assert rounds.current is not None
        assert rounds.current.phase == "closed"
    else:
        assert np.isfinite(np.frombuffer(rounds.state[-16:], np.float32)).all()
    rounds.close()


def test_a_folder_of_other_rounds_is_refused(tmp_path: Path) -> None:
    rounds_in(tmp_path).close()
    with pytest.raises(RunFolderError, match="other rounds"):
        Rounds(tmp_path, PLAN, 8, ParameterExchange(METHOD, FIRST, PLAN), lambda: frozenset(DEVICES))


def test_a_state_that_somebody_changed_is_refused(tmp_path: Path) -> None:
    rounds = rounds_in(tmp_path)
    rounds.advance(DEVICES, START)
    rounds.close()
    path = rounds.states.path(7)
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(RunFolderError, match="not the state"):
        rounds_in(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"fraction": 0.0}, {"fraction": 1.1}, {"quorum": 0.0}, {"rounds": 0}, {"minimum_devices": 0}, {"deadline_seconds": float("inf")}],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(PLAN, **change)


def test_prototypes_take_the_same_way(tmp_path: Path) -> None:
    means = {"pi-0": np.array([[1, 2], [3, 4]], np.float32), "pi-1": np.array([[3, 2], [8, 8]], np.float32)}
    classes = {"pi-0": np.array([0, 1], np.int64), "pi-1": np.array([0, 2], np.int64)}
    plan = replace(PLAN, rounds=1)
    rounds = Rounds(tmp_path, plan, 0, PrototypeExchange(3, 2), lambda: frozenset(DEVICES))
    rounds.advance(["pi-0", "pi-1"], START)
    assert rounds.task_for("pi-0").payload == "prototypes"
    update = PrototypeUpdate(0, classes["pi-0"], means["pi-0"][:, :1], np.array([10, 10], np.int64))
    assert rounds.take([envelope("pi-0", update, 1)], START)[0].code == "wrong-shape"
    for device, counts in (("pi-1", np.array([30, 10], np.int64)), ("pi-0", np.array([10, 20], np.int64))):
        update = PrototypeUpdate(0, classes[device], means[device], counts)
        assert rounds.take([envelope(device, update, 2)], START)[0].accepted
    assert whats(rounds.advance(DEVICES, START)) == ["closed", "published", "ended"]
    result = rounds.exchange.announcement(rounds.state, 0)
    assert result is not None
    assert result.means.tolist() == [[2.5, 2.0], [3.0, 4.0], [8.0, 8.0]]  # type: ignore[union-attr]
    assert rounds.take([envelope("pi-0", EvaluationReport(0, 5, 0.5, 1.0), 3)], START)[0].accepted
    rounds.close()


def test_trained_differs_between_devices_and_rounds() -> None:
    """The bench itself: updates that were all alike would hide a wrong order."""
    from trainer.coordinator.parameter_exchange import encode_state

    base = encode_state(FIRST)
    trees = [trained(base, device, number) for device in DEVICES for number in (7, 8)]
    assert len({tree[min(tree)].tobytes() for tree in trees}) == len(trees)
