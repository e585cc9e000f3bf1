"""Ed25519 where implementations have gone wrong: malleable, truncated, non-canonical, small-order and twisted signatures.

The kinds of cases are those of project Wycheproof and of "Taming the many EdDSAs" (Chalkias, Garillot, Nikolaenko 2020); each
is made here from the definitions of RFC 8032, with a few lines of curve arithmetic of our own.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import pytest

from protocol.errors import KeyFileError
from protocol.keys import FIELD_PRIME, PrivateKey, PublicKey

P = FIELD_PRIME
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point: TypeAlias = tuple[int, int]
SEED = bytes(range(32))
KEY = PrivateKey(SEED)
MESSAGE = b"a message"
VECTORS = [  # RFC 8032, section 7.1: seed, public key, message, signature
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


def add(one: Point, other: Point) -> Point:
    """Add two points of the twisted Edwards curve (RFC 8032, section 5.1.4)."""
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2 % P
    return (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P


def times(scalar: int, point: Point) -> Point:
    result: Point = (0, 1)
    for bit in f"{scalar:b}":
        result = add(result, result)
        if bit == "1":
            result = add(result, point)
    return result


def recover_x(y: int, sign: int) -> int | None:
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square:
        return None
    return x if x % 2 == sign else P - x


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def challenge(commitment: bytes, public: bytes, message: bytes) -> int:
    return int.from_bytes(hashlib.sha512(commitment + public + message).digest(), "little") % ORDER


BASE_Y = 4 * pow(5, -1, P) % P
BASE: Point = (recover_x(BASE_Y, 0) or 0, BASE_Y)
SECRET = (int.from_bytes(hashlib.sha512(SEED).digest()[:32], "little") & (2**254 - 8)) | 2**254


def signed_with(commitment: bytes, nonce: int) -> bytes:
    """Return the signature that the holder of the key makes from a nonce and any spelling of its point."""
    scalar = (nonce + challenge(commitment, KEY.public.raw, MESSAGE) * SECRET) % ORDER
    return commitment + scalar.to_bytes(32, "little")


@pytest.mark.parametrize(("seed", "public", "message", "signature"), VECTORS)
def test_rfc_8032(seed: str, public: str, message: str, signature: str) -> None:
    key = PrivateKey(bytes.fromhex(seed))
    assert key.public.hex == public
    assert key.sign(bytes.fromhex(message)).hex() == signature
    assert PublicKey.from_hex(public).verify(bytes.fromhex(message), bytes.fromhex(signature))


def test_the_arithmetic_of_this_test_is_right() -> None:
    assert encode(times(SECRET, BASE)) == KEY.public.raw
    assert times(ORDER, BASE) == (0, 1)
    nonce = 12345
    assert KEY.public.verify(MESSAGE, signed_with(encode(times(nonce, BASE)), nonce))


@pytest.mark.parametrize("multiple", range(1, 16))
def test_a_scalar_beyond_the_order_is_refused(multiple: int) -> None:
    """Else every signature had others that verify too (malleability)."""
    signature = KEY.sign(MESSAGE)
    scalar = int.from_bytes(signature[32:], "little") + multiple * ORDER
    assert scalar < 2**256
    assert not KEY.public.verify(MESSAGE, signature[:32] + scalar.to_bytes(32, "little"))


@pytest.mark.parametrize("scalar", [0, 1, ORDER - 1, ORDER, ORDER + 1, 2**252, 2**253, 2**255 - 1, 2**256 - 1])
def test_a_scalar_that_was_not_computed_is_refused(scalar: int) -> None:
    assert not KEY.public.verify(MESSAGE, KEY.sign(MESSAGE)[:32] + scalar.to_bytes(32, "little"))


def test_a_second_spelling_of_the_commitment_is_refused() -> None:
    """The neutral point, y = 1, can also be written with y = p + 1, or with the sign bit of x = 0 set."""
    assert KEY.public.verify(MESSAGE, signed_with(encode((0, 1)), 0))  # the key's holder may do so: nothing is forged
    for spelling in ((P + 1).to_bytes(32, "little"), (1 | 1 << 255).to_bytes(32, "little"), (P + 1 | 1 << 255).to_bytes(32, "little")):
        assert not KEY.public.verify(MESSAGE, signed_with(spelling, 0))


@pytest.mark.parametrize("y", [2, 7, P - 2, P, 2**255 - 1])
def test_a_commitment_that_is_no_usable_point_is_refused(y: int) -> None:
    for sign in (0, 1):
        commitment = (y | sign << 255).to_bytes(32, "little")
        for nonce in (0, 1):
            assert not KEY.public.verify(MESSAGE, signed_with(commitment, nonce))


@pytest.mark.parametrize("length", [*range(64), *range(65, 130), 2**16])
def test_another_length_is_refused(length: int) -> None:
    signature = KEY.sign(MESSAGE)
    assert not KEY.public.verify(MESSAGE, (signature * (length // 64 + 1))[:length])


def test_every_single_bit_matters() -> None:
    signature = int.from_bytes(KEY.sign(MESSAGE), "little")
    assert not any(KEY.public.verify(MESSAGE, (signature ^ 1 << bit).to_bytes(64, "little")) for bit in range(512))


def test_parts_in_another_order_are_refused() -> None:
    signature = KEY.sign(MESSAGE)
    for wrong in (signature[32:] + signature[:32], signature[::-1], signature[:32] * 2, signature[32:] * 2, bytes(64), b"\xff" * 64):
        assert not KEY.public.verify(MESSAGE, wrong)


@pytest.mark.parametrize("message", [b"", b"\0", MESSAGE + b"\0", MESSAGE[:-1], MESSAGE.upper(), MESSAGE * 10_000])
def test_another_message_is_refused(message: bytes) -> None:
    assert not KEY.public.verify(message, KEY.sign(MESSAGE))
    assert KEY.public.verify(message, KEY.sign(message))


@pytest.mark.parametrize("y", [2, 7, 8, P - 2])
@pytest.mark.parametrize("sign", [0, 1])
def test_a_key_that_is_no_point_verifies_nothing(y: int, sign: int) -> None:
    assert recover_x(y, 0) is None
    try:
        key = PublicKey((y | sign << 255).to_bytes(32, "little"))
    except KeyFileError:
        return
    assert not any(key.verify(MESSAGE, commitment + bytes(32)) for commitment in (encode((0, 1)), bytes(32), encode(BASE)))


def test_a_key_of_small_order_cannot_be_used_to_sign_for_everybody() -> None:
    """Under the neutral point as key, R = s B verifies for every message; the key is refused before that."""
    with pytest.raises(KeyFileError):
        PublicKey(encode((0, 1)))


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(KeyFileError, match="length"):
        PublicKey(bytes(length))
    with pytest.raises(KeyFileError, match="length"):
        PrivateKey(bytes(length))
