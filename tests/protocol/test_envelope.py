"""A payload is believed only when size, signature, addressee, time and content all hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import envelope, schema
from protocol.envelope import MAXIMUM_MESSAGE_BYTES, SIGNATURE_CONTEXT, Address, Expectation, Header, seal, unseal
from protocol.errors import (
    FedtailorError,
    MalformedMessageError,
    MessageError,
    MessageSignatureError,
    OversizeMessageError,
    PrototypeNotFiniteError,
    StaleMessageError,
    UnknownDeviceError,
)
from protocol.keys import PrivateKey, PublicKey
from protocol.messages import Message, PrototypeUpdate, check_prototypes
from protocol.tensors import encode_tensors
from tests.protocol.samples import messages, prototype_update

KEY = PrivateKey(bytes(range(32)))
OTHER = PrivateKey(bytes(range(1, 33)))
BUNDLE = "ab" * 32
ADDRESS = Address("demo", "device-1", 3, BUNDLE)
NOW = 1_800_000_000.0
TIMES = (NOW, NOW + 60)


def find_key(sender: str) -> PublicKey:
    if sender != "device-1":
        raise UnknownDeviceError("a device is not in the registry", got=sender)
    return KEY.public


EXPECTATION = Expectation("demo", BUNDLE, find_key)


def signed(head: bytes, body: bytes = b"") -> bytes:
    """Return a payload with any header and body, signed by the right key."""
    content = b"FTM1" + len(head).to_bytes(4, "little") + head + body
    return content + KEY.sign(SIGNATURE_CONTEXT + content)


def header(**changes: Any) -> bytes:
    fields = {"device": "device-1", "boot": 3, "sequence": 14, "accepted": True, "reason": ""}
    good = Header("receipt/1", "demo", "device-1", 3, 7, *TIMES, BUNDLE, fields)
    return schema.to_json({**schema.encode(good), **changes})


@pytest.mark.parametrize("message", messages(), ids=lambda message: message.KIND)
def test_a_message_comes_back(message: Message) -> None:
    opened = unseal(seal(message, ADDRESS, 7, TIMES, KEY), EXPECTATION, NOW)
    np.testing.assert_equal(vars(opened.message), vars(message))
    assert (opened.header.sender, opened.header.boot, opened.header.sequence) == ("device-1", 3, 7)


def test_the_layout_is_the_documented_one() -> None:
    payload = seal(messages()[0], ADDRESS, 7, TIMES, KEY)
    length = int.from_bytes(payload[4:8], "little")
    assert payload[:4] == b"FTM1"
    assert schema.parse_json(payload[8 : 8 + length])["kind"] == "prototype-update/1"
    assert KEY.public.verify(b"fedtailor-message/1\0" + payload[:-64], payload[-64:])


def test_the_header_written_by_hand_is_accepted() -> None:
    unseal(signed(header()), EXPECTATION, NOW)


@pytest.mark.parametrize("message", messages(), ids=lambda message: message.KIND)
def test_any_flipped_byte_is_refused(message: Message) -> None:
    good = seal(message, ADDRESS, 7, TIMES, KEY)
    for place in range(len(good)):
        with pytest.raises((MessageError, UnknownDeviceError)):
            unseal(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :], EXPECTATION, NOW)


def test_another_key_is_refused() -> None:
    with pytest.raises(MessageSignatureError):
        unseal(seal(messages()[0], ADDRESS, 7, TIMES, OTHER), EXPECTATION, NOW)


def test_a_signature_over_something_else_is_refused() -> None:
    payload = seal(messages()[0], ADDRESS, 7, TIMES, KEY)
    with pytest.raises(MessageSignatureError):
        unseal(payload[:-64] + KEY.sign(payload[:-64]), EXPECTATION, NOW)


def test_an_unknown_sender_is_refused() -> None:
    with pytest.raises(UnknownDeviceError):
        unseal(seal(messages()[0], Address("demo", "device-2", 3, BUNDLE), 7, TIMES, KEY), EXPECTATION, NOW)


def test_the_body_is_not_parsed_before_the_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr(envelope, "decode_tensors", fail)
    monkeypatch.setattr(envelope, "join_message", fail)
    with pytest.raises(MessageSignatureError):
        unseal(seal(messages()[0], ADDRESS, 7, TIMES, OTHER), EXPECTATION, NOW)


@pytest.mark.parametrize("address", [Address("other", "device-1", 3, BUNDLE), Address("demo", "device-1", 3, "cd" * 32)])
def test_another_federation_or_bundle_is_refused(address: Address) -> None:
    with pytest.raises(StaleMessageError):
        unseal(seal(messages()[0], address, 7, TIMES, KEY), EXPECTATION, NOW)


@pytest.mark.parametrize("now", [NOW - 301, NOW + 60 + 301])
def test_another_time_is_refused(now: float) -> None:
    payload = seal(messages()[0], ADDRESS, 7, TIMES, KEY)
    with pytest.raises(StaleMessageError):
        unseal(payload, EXPECTATION, now)


@pytest.mark.parametrize("now", [NOW - 299, NOW + 60 + 299])
def test_clocks_may_differ_a_little(now: float) -> None:
    unseal(seal(messages()[0], ADDRESS, 7, TIMES, KEY), EXPECTATION, now)


def test_a_message_too_large_is_neither_sent_nor_read() -> None:
    large = prototype_update(means=np.zeros((2, 5000), np.float32))
    with pytest.raises(OversizeMessageError):
        seal(large, ADDRESS, 7, TIMES, KEY)
    with pytest.raises(OversizeMessageError):
        unseal(bytes(MAXIMUM_MESSAGE_BYTES + 1), EXPECTATION, NOW)


MALFORMED = {
    "empty": b"",
    "other magic": b"XXXX" + signed(header())[4:],
    "no room for a signature": b"FTM1" + bytes(67),
    "header longer than the payload": b"FTM1" + (2**32 - 1).to_bytes(4, "little") + bytes(100),
    "header beyond the limit": signed(b" " * 17_000 + header()),
    "header is no JSON": signed(b"{"),
    "header is a list": signed(b"[]"),
    "unknown key": signed(header(extra=1)),
    "boot is a text": signed(header(boot="3")),
    "boot is true": signed(header(boot=True)),
    "negative sequence": signed(header(sequence=-1)),
    "negative boot": signed(header(boot=-1)),
    "unknown kind": signed(header(kind="evil/1")),
    "fields of another kind": signed(header(kind="evaluation-report/1")),
    "tensors that do not belong": signed(header(), encode_tensors({"x": np.zeros(1, np.float32)})),
    "body is no tensors": signed(header(), b"garbage"),
}


@pytest.mark.parametrize("payload", MALFORMED.values(), ids=MALFORMED)
def test_malformed_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        unseal(payload, EXPECTATION, NOW)


def test_nan_arrives_at_the_check_that_names_it() -> None:
    payload = seal(prototype_update(means=np.full((2, 3), np.nan, np.float32)), ADDRESS, 7, TIMES, KEY)
    message = unseal(payload, EXPECTATION, NOW).message
    assert isinstance(message, PrototypeUpdate)
    with pytest.raises(PrototypeNotFiniteError):
        check_prototypes(message, 5, 3)


@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda rest: b"FTM1" + rest) | st.binary(max_size=200).map(signed))
def test_any_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(FedtailorError):
        unseal(payload, EXPECTATION, NOW)


@given(st.binary(max_size=200))
def test_any_signed_body_is_refused(body: bytes) -> None:
    """Even the holder of a key cannot make the parser fail in another way."""
    with pytest.raises(MessageError):
        unseal(signed(header(kind="prototype-update/1", fields={"round": 1}), body), EXPECTATION, NOW)
