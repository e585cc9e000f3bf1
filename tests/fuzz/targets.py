"""One function for each decoder and state machine: any bytes go in, and only errors of the tree may come out.

The functions know nothing of who calls them: hypothesis in the ordinary tests, atheris before a release (``run.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from protocol.chunk_frame import ChunkFrame
from protocol.envelope import MAGIC, MAXIMUM_SEALED_BYTES, SIGNATURE_CONTEXT, Address, Expectation, seal, unseal, verify
from protocol.errors import FedtailorError
from protocol.keys import PrivateKey, PublicKey
from protocol.message_checks import MAXIMUM_INTEGER
from protocol.messages import Offer, ParameterUpdate, Want, join_message, split_message
from protocol.schema import SchemaError, parse_json
from protocol.tensor_encodings import ENCODINGS, decode_tree, error_bound
from protocol.tensors import decode_tensors, encode_tensors
from tests.fuzz.machines import Link, calm, play, small_groups
from tests.protocol.samples import messages, parameter_update

KEY = PrivateKey(bytes(range(32)))
NOW = 1_800_000_000.0
ADDRESS = Address("demo", "device-1", 3, "ab" * 32)


def find_key(sender: str) -> PublicKey:
    return KEY.public


EXPECTATION = Expectation("demo", "ab" * 32, find_key)
PAYLOADS = [seal(message, ADDRESS, 7, (NOW, NOW + 60), KEY) for message in messages()]
HEADS = [payload[8 : 8 + int.from_bytes(payload[4:8], "little")] for payload in PAYLOADS]
CONTENTS = [head + b"\0" + payload[8 + len(head) : -64] for head, payload in zip(HEADS, PAYLOADS, strict=True)]
SPLIT = [split_message(parameter_update().encoded(encoding)) for encoding in ENCODINGS]
TREES = [encode_tensors(arrays) for _, arrays in SPLIT]


def payload(data: bytes) -> None:
    """Bytes from the wire; nothing but the very payloads that were signed gets through."""
    try:
        verified = verify(data, find_key)
    except FedtailorError:
        return
    assert data in PAYLOADS, verified


def signed_content(data: bytes) -> None:
    """Header and body, with a zero byte between them, of a sender who has a key and means harm."""
    head, _, body = data.partition(b"\0")
    content = MAGIC + len(head).to_bytes(4, "little") + head + body
    try:
        message = unseal(content + KEY.sign(SIGNATURE_CONTEXT + content), EXPECTATION, NOW, MAXIMUM_SEALED_BYTES).message
    except FedtailorError:
        return
    assert join_message(message.KIND, *split_message(message)).KIND == message.KIND
    use(message)


def use(message: object) -> None:
    """Do what a receiver does with a message that it believes."""
    if isinstance(message, ParameterUpdate):
        with np.errstate(over="raise", invalid="raise"):
            values = message.values()
        assert all(value.dtype == np.float32 and np.isfinite(value).all() for value in values.values())
    elif isinstance(message, Want):
        chunks = message.chunks()
        assert chunks == sorted(set(chunks))
        assert all(0 <= chunk <= MAXIMUM_INTEGER for chunk in chunks)
    elif isinstance(message, Offer):
        assert message.groups.shape[1] == 32


def tensors(data: bytes) -> None:
    """A body of tensors."""
    try:
        found = decode_tensors(data)
    except FedtailorError:
        return
    assert sum(array.nbytes for array in found.values()) <= 2 * len(data)  # bfloat16 doubles


def chunk(data: bytes) -> None:
    """A frame of a transfer."""
    try:
        frame = ChunkFrame.from_bytes(data)
    except FedtailorError:
        return
    assert frame.to_bytes() == data


def json(data: bytes) -> None:
    """A document."""
    try:
        parse_json(data)
    except SchemaError:
        return


def update(data: bytes) -> None:
    """The body of an update in each encoding."""
    try:
        arrays = decode_tensors(data)
    except FedtailorError:
        return
    for plain, _ in SPLIT:
        try:
            message = join_message(ParameterUpdate.KIND, plain, arrays)
        except FedtailorError:
            continue
        assert isinstance(message, ParameterUpdate)
        values = decode_tree(message.tensors, message.encoding)
        assert np.isfinite(error_bound(values, message.encoding))


def transfer(data: bytes) -> None:
    """A transfer on which the bytes decide: the right content, or an end with a name, never wrong content."""
    with pytest.MonkeyPatch.context() as patch:
        small_groups(patch)
        size = 1 + int.from_bytes(data[:2], "little") % 30_000
        content = np.random.default_rng(size).bytes(size)
        link = Link(content)
        play(link, data[2:])
        assert link.result in (None, content)
        calm(link)
        assert link.result == content or link.ended, f"{link.now} s"
        assert all(ended.code in ("accepted", "bad-digest", "malformed") for ended in link.ended)
        # Everything that came was asked for: a bad piece costs its group, at most three times.
        assert link.result == content or "bad-digest" in {ended.code for ended in link.ended}


TARGETS: Mapping[str, tuple[Callable[[bytes], None], list[bytes]]] = {
    "payload": (payload, PAYLOADS),
    "signed content": (signed_content, CONTENTS),
    "tensors": (tensors, TREES),
    "update": (update, TREES),
    "chunk": (chunk, [ChunkFrame(bytes(16), 512 * place, bytes(range(64))).to_bytes() for place in range(3)]),
    "json": (json, HEADS),
    "transfer": (transfer, [bytes(range(0, 256, step)) * 2 for step in (1, 3, 7)]),
}
