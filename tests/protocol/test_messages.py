"""Messages come back from their parts; prototypes that cannot be true are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.errors import (
    MalformedMessageError,
    PrototypeClassError,
    PrototypeCountError,
    PrototypeDimensionError,
    PrototypeError,
    PrototypeNotFiniteError,
)
from protocol.messages import (
    KINDS,
    ChannelHead,
    Done,
    EvaluationReport,
    Fail,
    GlobalPrototypes,
    Message,
    Offer,
    Presence,
    Receipt,
    RoundResult,
    RoundTask,
    Want,
    check_prototypes,
    join_message,
    split_message,
)
from protocol.reasons import reason_code
from tests.protocol.samples import messages, parameter_update, prototype_update


def test_every_kind_has_an_example() -> None:
    assert {message.KIND for message in messages()} == set(KINDS)
    assert [message.KIND for message in KINDS.values()] == list(KINDS)


@pytest.mark.parametrize("message", messages(), ids=lambda message: message.KIND)
def test_a_message_comes_back(message: Message) -> None:
    plain, arrays = split_message(message)
    back = join_message(message.KIND, plain, arrays)
    assert type(back) is type(message)
    np.testing.assert_equal(vars(back), vars(message))


@pytest.mark.parametrize("message", messages(), ids=lambda message: message.KIND)
def test_a_field_too_many_or_too_few_is_refused(message: Message) -> None:
    plain, arrays = split_message(message)
    with pytest.raises(MalformedMessageError):
        join_message(message.KIND, {**plain, "more": 1}, arrays)
    with pytest.raises(MalformedMessageError):
        join_message(message.KIND, {}, arrays)
    with pytest.raises(MalformedMessageError):
        join_message(message.KIND, plain, {**arrays, "more": np.zeros(1)})
    with pytest.raises(MalformedMessageError):
        join_message("evil/1", plain, arrays)


@pytest.mark.parametrize(("name", "dtype"), [("means", np.float64), ("means", np.float16), ("classes", np.int32), ("counts", np.float32)])
def test_another_dtype_is_refused(name: str, dtype: Any) -> None:
    plain, arrays = split_message(prototype_update())
    with pytest.raises(MalformedMessageError, match=name):
        join_message("prototype-update/1", plain, {**arrays, name: arrays[name].astype(dtype)})


@pytest.mark.parametrize("fields", [(-1, None, None), (1, 1.5, None), (1, None, -0.1), (1, float("nan"), None)])
def test_impossible_reports_are_refused(fields: tuple[int, float | None, float | None]) -> None:
    with pytest.raises(MalformedMessageError):
        EvaluationReport(0, *fields)


def test_a_negative_round_is_refused() -> None:
    update = prototype_update()
    with pytest.raises(MalformedMessageError, match="round"):
        prototype_update(round=-1)
    with pytest.raises(MalformedMessageError, match="round"):
        GlobalPrototypes(-1, update.classes, update.means, update.counts, 1)


DIGEST = "5a" * 32
GROUPS = np.zeros((3, 32), np.uint8)
TASK = (1, 0, 1.8e9, DIGEST, 100, 42, "parameters", {"learning_rate": 0.1}, "float32")
HEAD = (DIGEST, 1, DIGEST, 100, 1.8e9, 3, "open")
IMPOSSIBLE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "update of a negative round": (parameter_update, (("round", -1),)),
    "update without a base": (parameter_update, (("base", "5A" * 32),)),
    "update of no samples": (parameter_update, (("sample_count", 0),)),
    "update of absurdly many samples": (parameter_update, (("sample_count", 10**10),)),
    "update with an infinite metric": (parameter_update, (("metrics", {"loss": float("inf")}),)),
    "update with too many metrics": (parameter_update, (("metrics", {str(number): 0.0 for number in range(33)}),)),
    "update with a long name of a metric": (parameter_update, (("metrics", {"a" * 65: 0.0}),)),
    "update with NaN": (parameter_update, (("tensors", {"a": np.full(2, np.nan, np.float32)}),)),
    "update of another encoding": (parameter_update, (("encoding", "float16"),)),
    "update of an unknown encoding": (parameter_update, (("encoding", "int4"),)),
    "update without tensors": (parameter_update, (("tensors", {}),)),
    "task of a negative round": (RoundTask, (-1, *TASK[1:])),
    "task with a negative attempt": (RoundTask, (1, -1, *TASK[2:])),
    "task with a deadline beyond time": (RoundTask, (1, 0, 1e300, *TASK[3:])),
    "task without a state": (RoundTask, (*TASK[:3], "", *TASK[4:])),
    "task with an absurd state": (RoundTask, (*TASK[:4], 2**31, *TASK[5:])),
    "task with a negative seed": (RoundTask, (*TASK[:5], -1, *TASK[6:])),
    "task with an infinite scalar": (RoundTask, (*TASK[:7], {"rate": float("nan")}, "float32")),
    "result of fewer than no devices": (RoundResult, (1, DIGEST, 100, -1)),
    "result without a state": (RoundResult, (1, DIGEST[:-1], 100, 1)),
    "receipt that accepts and refuses": (Receipt, ("a", 1, 1, True, "", "late")),
    "receipt that refuses and accepts": (Receipt, ("a", 1, 1, False, "", "accepted")),
    "receipt of a negative boot": (Receipt, ("a", -1, 1, True, "")),
    "receipt with a number beyond JSON": (Receipt, ("a", 1, 2**53 + 1, True, "")),
    "receipt of two lines": (Receipt, ("a\nb", 1, 1, True, "")),
    "presence without a bundle": (Presence, ("online", 1, "", "0.1", "idle")),
    "presence with a long state": (Presence, ("online", 1, DIGEST, "0.1", "x" * 65)),
    "head without a transfer": (ChannelHead, (DIGEST, 1, "", 100, 1.8e9, 3, "open")),
    "head with a negative version": (ChannelHead, (DIGEST, -1, *HEAD[2:])),
    "head of a negative round": (ChannelHead, (*HEAD[:5], -3, "open")),
    "offer of nothing": (Offer, (DIGEST, 0, 512, "state", None, 1.8e9)),
    "offer of more than a transfer may have": (Offer, (DIGEST, 2**30 + 1, 512, "state", None, 1.8e9)),
    "offer of odd chunks": (Offer, (DIGEST, 100, 513, "state", None, 1.8e9)),
    "offer with too few digests": (Offer, (DIGEST, 4 * 2**20, 512, "state", None, 1.8e9, GROUPS)),
    "offer with needless digests": (Offer, (DIGEST, 100, 512, "state", None, 1.8e9, GROUPS[:1])),
    "offer with short digests": (Offer, (DIGEST, 3 * 2**20, 512, "state", None, 1.8e9, GROUPS[:, :31])),
    "want of too much": (Want, (DIGEST, 65, 512, 0, "01")),
    "want with odd digits": (Want, (DIGEST, 1, 512, 0, "0")),
    "want in capitals": (Want, (DIGEST, 1, 512, 0, "AB")),
    "want of too many": (Want, (DIGEST, 1, 512, 0, "ff" * 129)),
    "want from a negative chunk": (Want, (DIGEST, 1, 512, -1, "01")),
    "want beyond everything": (Want, (DIGEST, 1, 512, 2**31, "01")),
    "want of nothing": (Want, (DIGEST, 1, 512, 0, "")),
    "want without credit": (Want, (DIGEST, 0, 512, 0, "01")),
    "done with nothing": (Done, ("",)),
    "fail with a long reason": (Fail, (DIGEST, "quota", "x" * 301)),
    "fail with two lines": (Fail, (DIGEST, "quota", "a\nb")),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_fields_are_refused(name: str) -> None:
    make, values = IMPOSSIBLE[name]
    named = dict(values) if make is parameter_update else {}
    with pytest.raises(MalformedMessageError):
        make(*(() if named else values), **named)


@pytest.mark.parametrize(
    ("field", "value"), [("code", "unheard-of"), ("code", 1), ("status", "asleep"), ("media", "virus"), ("encoding", "int4")]
)
def test_a_word_outside_its_list_is_refused_on_the_wire(field: str, value: object) -> None:
    found = 0
    for message in messages():
        plain, arrays = split_message(message)
        if field in plain:
            found += 1
            with pytest.raises(MalformedMessageError):
                join_message(message.KIND, {**plain, field: value}, arrays)
    assert found > 0


SHAPES: list[dict[str, Any]] = [
    {},
    {"weight": [3, 4], "bias": [4]},
    {"weight": [15]},
    {"weight": [2**40, 2**40], "bias": [3]},
    {"weight": [-3, -4], "bias": [3]},
    {"weight": [15, 0]},
    {"weight": [1] * 8 + [15]},
    {"/scales": [15]},
    {"": [15]},
    {"weight": 15},
    {"weight": [15.0]},
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes_of_a_tree_that_do_not_fit_are_refused(shapes: dict[str, Any]) -> None:
    plain, arrays = split_message(parameter_update())
    join_message("parameter-update/1", {**plain, "shapes": {"x": [15]}}, arrays)
    if shapes != {"weight": [15]}:
        with pytest.raises(MalformedMessageError):
            join_message("parameter-update/1", {**plain, "shapes": shapes}, arrays)


@pytest.mark.parametrize("encoding", ["float32", "float16", "int8"])
def test_a_tree_comes_back_in_every_encoding(encoding: Any) -> None:
    update = parameter_update().encoded(encoding)
    back: Any = join_message(update.KIND, *split_message(update))
    np.testing.assert_equal(vars(back), vars(update))
    np.testing.assert_equal(back.values(), update.values())


def test_the_chunks_of_a_request_come_back() -> None:
    chunks = [7, 8, 30, 1030]
    assert Want.of_chunks(DIGEST, 8, 512, chunks).chunks() == chunks
    assert Want.of_chunks(DIGEST, 8, 512, [*chunks, 1031]).chunks() == chunks  # beyond the reach


def test_every_error_of_a_message_has_a_code() -> None:
    with pytest.raises(MalformedMessageError) as caught:
        parameter_update(tensors={"a": np.full(2, np.nan, np.float32)})
    assert reason_code(caught.value) == "not-finite"
    assert reason_code(MalformedMessageError("x")) == "malformed"
    assert reason_code(PrototypeNotFiniteError("x")) == "not-finite"
    assert reason_code(PrototypeDimensionError("x")) == "wrong-shape"


def test_good_prototypes_pass() -> None:
    check_prototypes(prototype_update(), 5, 3)


MEANS = np.zeros((2, 3), np.float32)


def means(value: float) -> np.ndarray:
    changed = MEANS.copy()
    changed[1, 2] = value
    return changed


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"means": means(np.nan)}, PrototypeNotFiniteError),
        ({"means": means(np.inf)}, PrototypeNotFiniteError),
        ({"means": means(-np.inf)}, PrototypeNotFiniteError),
        ({"means": means(2e6)}, PrototypeNotFiniteError),
        ({"means": np.zeros((2, 4), np.float32)}, PrototypeDimensionError),
        ({"means": np.zeros((2, 2), np.float32)}, PrototypeDimensionError),
        ({"counts": whole(10, 0)}, PrototypeCountError),
        ({"counts": whole(10, -5)}, PrototypeCountError),
        ({"counts": whole(10, 10**9 + 1)}, PrototypeCountError),
        ({"classes": whole(0, 5)}, PrototypeClassError),
        ({"classes": whole(0, -1)}, PrototypeClassError),
        ({"classes": whole(3, 3)}, PrototypeClassError),
        ({"classes": whole(0)}, PrototypeError),
        ({"counts": whole(1, 2, 3)}, PrototypeError),
        ({"means": np.zeros(2, np.float32)}, PrototypeError),
        ({"means": np.zeros((3, 3), np.float32)}, PrototypeError),
        ({"means": MEANS[:0], "classes": whole(), "counts": whole()}, PrototypeError),
        ({"classes": whole(0, 1)[:, None]}, PrototypeError),
    ],
)
def test_impossible_prototypes_are_refused(changes: dict[str, Any], error: type[PrototypeError]) -> None:
    with pytest.raises(PrototypeError) as caught:
        check_prototypes(prototype_update(**changes), 5, 3)
    assert type(caught.value) is error
