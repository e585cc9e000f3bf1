"""Every decoder and state machine against 20,000 damaged inputs each; a failing one is printed with its seed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutate
from tests.fuzz.targets import TARGETS

IN_A_BATCH = 40


def try_batch(name: str, seed: int) -> None:
    """Try some inputs; hypothesis looks for the seed, and the input is part of the report."""
    target, corpus = TARGETS[name]
    generator = random.Random(seed)
    for number in range(IN_A_BATCH):
        data = mutate(generator, corpus)
        try:
            target(data)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}, input {number}: {data.hex()}") from error


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_damaged_inputs(name: str) -> None:
    for seed in range(10):
        try_batch(name, seed)


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.binary(max_size=200))
def test_any_bytes(name: str, data: bytes) -> None:
    TARGETS[name][0](data)


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_are_taken(name: str) -> None:
    target, corpus = TARGETS[name]
    for data in corpus:
        target(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_damaged_inputs(name: str) -> None:
    @settings(max_examples=20_000 // IN_A_BATCH, deadline=None, derandomize=True)
    @given(seed=st.integers(0, 2**32))
    def batches(seed: int) -> None:
        try_batch(name, seed)

    batches()
