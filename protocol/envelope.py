"""One payload on the wire: magic, header length, JSON header, safetensors body, Ed25519 signature.

Everything needed stands in the payload, so nothing depends on MQTT 5 properties, bridges or brokers. Nothing beyond the
small header is parsed before the signature verifies. A payload of at most 32 KiB travels as it is; a larger one is the
content of a transfer, under the same signature.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocol.errors import MalformedMessageError, MessageSignatureError, OversizeMessageError, StaleMessageError
from protocol.keys import SIGNATURE_BYTES, PrivateKey, PublicKey
from protocol.message_checks import MAXIMUM_INTEGER
from protocol.messages import ChannelHead, Message, Presence, join_message, split_message
from protocol.schema import JsonValue, SchemaError, decode, encode, parse_json
from protocol.tensors import TensorLimits, decode_tensors, encode_tensors
from protocol.transfer_messages import Cancel, Done, Fail, Offer, Want

MAGIC = b"FTM1"
SIGNATURE_CONTEXT = b"fedtailor-message/1\0"
LENGTH_BYTES = 4
MAXIMUM_MESSAGE_BYTES = 32 * 1024  # in one payload
MAXIMUM_SEALED_BYTES = 64 * 1024 * 1024  # by a transfer
MAXIMUM_HEADER_BYTES = 16 * 1024
MAXIMUM_LARGE_HEADER_BYTES = 256 * 1024  # of a payload beyond MAXIMUM_MESSAGE_BYTES: thousands of names and shapes
CLOCK_TOLERANCE_SECONDS = 300.0
MILLISECONDS = 3  # decimal places of a time; more would cost bytes and say nothing
# NaN must reach the checks of the messages themselves, which name it; magnitudes are checked there too.
BODY_LIMITS = TensorLimits(header_bytes=4096, tensors=16, magnitude=None)
# These concern the fleet and not one bundle: a device with another bundle needs them all the more.
BUNDLE_FREE = frozenset(kind.KIND for kind in (Presence, ChannelHead, Offer, Want, Done, Fail, Cancel))


@dataclass(frozen=True)
class Header:
    """Who says what to whom, and until when.

    Attributes:
        kind: Kind of the message.
        federation: Federation that it belongs to.
        sender: Device id, or ``coordinator``.
        boot: Boot counter of the sender.
        sequence: Grows with every message of one boot.
        sent: Seconds since 1970, UTC, by the sender's clock.
        expires: The same; the message means nothing after it.
        bundle: Digest of the bundle that it is about.
        fields: The message's plain fields.
    """

    kind: str
    federation: str
    sender: str
    boot: int
    sequence: int
    sent: float
    expires: float
    bundle: str
    fields: Mapping[str, JsonValue]


@dataclass(frozen=True, eq=False)
class Envelope:
    """A message whose signature, federation and time were checked."""

    header: Header
    message: Message


@dataclass(frozen=True)
class Address:
    """What all messages of a sender have in common: federation, sender id, boot counter, digest of the bundle."""

    federation: str
    sender: str
    boot: int
    bundle: str


@dataclass(frozen=True)
class Expectation:
    """What a receiver accepts.

    Attributes:
        federation: Its federation.
        bundle: Digest of its bundle.
        find_key: Sender id -> public key; raises UnknownDeviceError.
        bundle_free: Kinds of messages that may be about another bundle.
        check_sender: Gets the id of a sender whose signature verified; raises RevokedDeviceError.
    """

    federation: str
    bundle: str
    find_key: Callable[[str], PublicKey]
    bundle_free: frozenset[str] = field(default=BUNDLE_FREE)
    check_sender: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Verified:
    """A payload whose signature holds: its header can be answered, whatever is wrong with the rest."""

    header: Header
    body: bytes

    def read(self, expectation: Expectation, now: float) -> Envelope:
        """Return the message.

        Raises:
            StaleMessageError: Expired, from the future, of another federation or about another bundle.
            MalformedMessageError: Header or body do not make a message of this protocol.
            RevokedDeviceError: The sender's key is revoked.
        """
        expectation.check_sender(self.header.sender)
        _check_freshness(self.header, expectation, now)
        arrays = decode_tensors(self.body, BODY_LIMITS) if self.body else {}
        return Envelope(self.header, join_message(self.header.kind, self.header.fields, arrays))


def seal(
    message: Message, address: Address, sequence: int, times: tuple[float, float], key: PrivateKey, most_bytes: int = MAXIMUM_MESSAGE_BYTES
) -> bytes:
    """Return the payload of a message.

    Args:
        message: The message.
        address: Who sends it.
        sequence: Sequence number, used once in a boot.
        times: When it is sent and when it expires, seconds since 1970, UTC.
        key: The sender's key.
        most_bytes: Bound of the payload; larger than the default only for the content of a transfer.

    Raises:
        OversizeMessageError: It is larger than one message may be.
    """
    fields, arrays = split_message(message)
    sent, expires = (round(time, MILLISECONDS) for time in times)
    header = Header(message.KIND, address.federation, address.sender, address.boot, sequence, sent, expires, address.bundle, fields)
    head = json.dumps(encode(header), separators=(",", ":"), allow_nan=False).encode()
    body = encode_tensors(arrays) if arrays else b""
    content = MAGIC + len(head).to_bytes(LENGTH_BYTES, "little") + head + body
    payload = content + key.sign(SIGNATURE_CONTEXT + content)
    header_limit = _header_limit(len(payload))
    if len(payload) > most_bytes or len(head) > header_limit:
        limit = f"at most {most_bytes} bytes, {header_limit} of them header"
        hint = "send fewer classes or features"
        raise OversizeMessageError(f"a {message.KIND} is too large to send", expected=limit, got=f"{len(payload)} bytes", hint=hint)
    return payload


def unseal(payload: bytes, expectation: Expectation, now: float, most_bytes: int = MAXIMUM_MESSAGE_BYTES) -> Envelope:
    """Return the message in a payload, after checking all that can be checked without knowing the round.

    Args:
        payload: What the broker delivered.
        expectation: What the receiver accepts.
        now: Seconds since 1970, UTC.
        most_bytes: Bound of the payload.

    Raises:
        OversizeMessageError: Too many bytes.
        MalformedMessageError: Not a message of this protocol.
        UnknownDeviceError: The sender has no key here.
        MessageSignatureError: Signed by another key, or altered.
        StaleMessageError: Expired, from the future, of another federation or about another bundle.
    """
    return verify(payload, expectation.find_key, most_bytes).read(expectation, now)


def verify(payload: bytes, find_key: Callable[[str], PublicKey], most_bytes: int = MAXIMUM_MESSAGE_BYTES) -> Verified:
    """Return header and body of a payload whose signature is its sender's.

    Raises:
        OversizeMessageError: Too many bytes.
        MalformedMessageError: Not a payload of this protocol.
        UnknownDeviceError: The sender has no key here.
        MessageSignatureError: Signed by another key, or altered.
    """
    header, start = _read_header(payload, most_bytes)
    if not find_key(header.sender).verify(SIGNATURE_CONTEXT + payload[:-SIGNATURE_BYTES], payload[-SIGNATURE_BYTES:]):
        raise MessageSignatureError("a message's signature does not verify", expected=f"the key of {header.sender}")
    return Verified(header, payload[start:-SIGNATURE_BYTES])


def _read_header(payload: bytes, most_bytes: int) -> tuple[Header, int]:
    """Return the header and where the body begins."""
    if len(payload) > most_bytes:
        raise OversizeMessageError("a message is too large", expected=f"at most {most_bytes} bytes", got=f"{len(payload)} bytes")
    start = len(MAGIC) + LENGTH_BYTES
    if payload[: len(MAGIC)] != MAGIC or len(payload) < start + SIGNATURE_BYTES:
        raise MalformedMessageError("a payload is no fedtailor message", expected=f"the magic {MAGIC!r}", got=repr(payload[:8]))
    length = int.from_bytes(payload[len(MAGIC) : start], "little")
    end = start + length
    if length > _header_limit(len(payload)) or end + SIGNATURE_BYTES > len(payload):
        limit = f"at most {_header_limit(len(payload))}"
        raise MalformedMessageError("a message's header length is impossible", expected=limit, got=length)
    try:
        header = decode(Header, parse_json(payload[start:end]), "header")
    except SchemaError as fault:
        raise MalformedMessageError(f"a message is malformed at {fault.where}", expected=fault.expected, got=fault.got) from fault
    return header, end


def _header_limit(size: int) -> int:
    """Return the largest header of a payload of a size; nothing but size and header is looked at before the signature."""
    return MAXIMUM_HEADER_BYTES if size <= MAXIMUM_MESSAGE_BYTES else MAXIMUM_LARGE_HEADER_BYTES


def _check_freshness(header: Header, expectation: Expectation, now: float) -> None:
    """Refuse what is for another time, federation or bundle."""
    pairs = {"federation": (expectation.federation, header.federation)}
    if header.kind not in expectation.bundle_free:
        pairs["bundle"] = (expectation.bundle, header.bundle)
    for name, (expected, got) in pairs.items():
        if expected != got:
            raise StaleMessageError(f"a message is for another {name}", expected=expected[:16], got=got[:16])
    if not (0 <= header.boot <= MAXIMUM_INTEGER and 0 <= header.sequence <= MAXIMUM_INTEGER):
        raise MalformedMessageError("a message's boot counter or sequence is impossible", got=f"{header.boot}, {header.sequence}")
    if not header.sent - CLOCK_TOLERANCE_SECONDS <= now <= header.expires + CLOCK_TOLERANCE_SECONDS:
        hint = "set the clocks of both sides"
        raise StaleMessageError(
            "a message is expired or from the future", expected=f"{header.sent:.0f} to {header.expires:.0f}", got=f"{now:.0f}", hint=hint
        )
