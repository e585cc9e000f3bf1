"""The error tree: every class has its exit code, its picture is complete, and errors survive a process boundary."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

import pytest

from protocol import errors
from protocol.errors import BundleError, FedtailorError, InputError, MessageError


def tree(kind: type[FedtailorError]) -> Iterator[type[FedtailorError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


ALL = list(tree(FedtailorError))


def test_exit_codes_differ_and_leave_the_usual_ones_alone() -> None:
    codes = [kind.exit_code for kind in ALL]
    assert len(set(codes)) == len(codes)
    assert all(code == 1 or 10 <= code < 126 for code in codes)


def test_the_picture_shows_every_class_with_its_code() -> None:
    drawn = dict(re.findall(r"(\w+Error) +(\d+)", errors.__doc__ or ""))
    assert drawn == {kind.__name__: str(kind.exit_code) for kind in ALL}


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_a_sentence_says_what_was_expected_what_came_and_what_to_do(kind: type[FedtailorError]) -> None:
    error = kind("shape is wrong", expected=(3,), got=(4,), hint="cut it")
    assert str(error) == "shape is wrong: expected (3,), got (4,); cut it"
    assert str(kind("it failed")) == "it failed"
    again = copy.copy(error)
    assert (type(again), again.expected, again.got, again.hint) == (kind, (3,), (4,), "cut it")


def test_branches() -> None:
    assert issubclass(errors.SampleShapeError, InputError)
    assert issubclass(errors.UnsafeGraphError, BundleError)
    assert issubclass(errors.PrototypeNotFiniteError, errors.PrototypeError)
    assert issubclass(errors.PrototypeError, MessageError)
