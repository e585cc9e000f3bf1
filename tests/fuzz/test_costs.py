"""What a hostile payload may cost before it is refused: bounded memory and time, whatever it claims of itself."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from protocol.envelope import MAXIMUM_MESSAGE_BYTES, MAXIMUM_SEALED_BYTES, SIGNATURE_CONTEXT, unseal
from protocol.errors import FedtailorError
from protocol.messages import join_message, split_message
from protocol.tensors import decode_tensors, encode_tensors
from tests.fuzz.targets import CONTENTS, EXPECTATION, KEY, NOW
from tests.protocol.samples import parameter_update

MEBIBYTE = 2**20
UPDATE = next(content for content in CONTENTS if b"parameter-update" in content)


def signed(head: bytes, body: bytes = b"") -> bytes:
    content = b"FTM1" + len(head).to_bytes(4, "little") + head + body
    return content + KEY.sign(SIGNATURE_CONTEXT + content)


def with_fields(**fields: object) -> bytes:
    """Return the signed update with some fields replaced."""
    head, _, body = UPDATE.partition(b"\0")
    document = json.loads(head)
    document["fields"].update(fields)
    return signed(json.dumps(document).encode(), body)


def filled(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece))


SMALL = {
    "deep lists": signed(filled(b"[", 16_000)),
    "deep objects": signed(filled(b'{"a":', 16_000)),
    "many empty lists": signed(b"[" + filled(b"[],", 16_000) + b"1]"),
    "many keys": signed(json.dumps({str(number): 0 for number in range(1500)}).encode()),
    "a long number": signed(b'{"boot":' + filled(b"9", 16_000) + b"}"),
    "a long fraction": signed(b'{"boot":1.' + filled(b"9", 16_000) + b"}"),
    "a long text": signed(b'{"kind":"' + filled(b"x", 16_000) + b'"}'),
    "shapes beyond all memory": with_fields(shapes={"a": [2**31, 2**31], "b": [2**40]}),
    "shapes that overflow": with_fields(shapes={str(number): [2**62] * 8 for number in range(60)}),
    "shapes of many axes": with_fields(shapes={"a": [1] * 4000}),
    "many shapes": with_fields(shapes={str(number): [1] for number in range(1000)}),
    "many metrics": with_fields(metrics={str(number): 0.5 for number in range(1000)}),
}
LARGE = {
    "a header of empty lists": signed(b"[" + filled(b"[],", 250_000) + b"1]"),
    "a header of shapes": with_fields(shapes={str(number): [1, 1] for number in range(15_000)}),
    "a megabyte of tensors": signed(
        UPDATE.partition(b"\0")[0], encode_tensors({f"{number:04}": np.zeros(1, np.int8) for number in range(15_000)})
    ),
    "ten megabytes of noise": signed(UPDATE.partition(b"\0")[0], np.random.default_rng(0).bytes(10 * MEBIBYTE)),
}


def refuse(payload: bytes, most_bytes: int) -> None:
    with pytest.raises(FedtailorError):
        unseal(payload, EXPECTATION, NOW, most_bytes)


def cost(call: Callable[[], object]) -> tuple[float, int]:
    """Return the seconds of the processor, the best of three, and the bytes at the peak."""
    seconds = []
    for _ in range(3):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(seconds), peak


@pytest.mark.parametrize("name", SMALL)
def test_one_payload_is_refused_within_fifty_milliseconds_and_a_megabyte(name: str) -> None:
    assert len(SMALL[name]) <= MAXIMUM_MESSAGE_BYTES
    seconds, peak = cost(lambda: refuse(SMALL[name], MAXIMUM_MESSAGE_BYTES))
    assert seconds < 0.05
    assert peak < MEBIBYTE * 2


@pytest.mark.parametrize("name", LARGE)
def test_large_content_is_refused_within_64_megabytes(name: str) -> None:
    seconds, peak = cost(lambda: refuse(LARGE[name], MAXIMUM_SEALED_BYTES))
    assert seconds < 1
    assert peak < 64 * MEBIBYTE


def test_a_good_update_costs_little_more_than_its_numbers() -> None:
    update = parameter_update(tensors={f"layer{number}": np.ones(100_000, np.float32) for number in range(20)})
    plain, arrays = split_message(update)
    body = encode_tensors(arrays)
    _, peak = cost(lambda: join_message(update.KIND, plain, decode_tensors(body)))
    assert peak < 3.5 * len(body)  # a copy, and the check that its numbers are finite
