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
from protocol.messages import KINDS, EvaluationReport, GlobalPrototypes, Message, check_prototypes, join_message, split_message
from tests.protocol.samples import messages, prototype_update


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
