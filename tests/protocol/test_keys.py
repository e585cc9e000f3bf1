"""Keys: signatures, files, and keys that must not be used."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from protocol.errors import KeyFileError
from protocol.keys import FIELD_PRIME, SMALL_ORDER_Y, PrivateKey, PublicKey


def test_rfc_8032_test_vector() -> None:
    key = PrivateKey(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert key.public.hex == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert key.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155")


def test_a_signature_is_for_one_message_and_key() -> None:
    key = PrivateKey.generate()
    signature = key.sign(b"message")
    assert key.public.verify(b"message", signature)
    assert not key.public.verify(b"another", signature)
    assert not PrivateKey.generate().public.verify(b"message", signature)
    assert not key.public.verify(b"message", signature[:-1])
    assert not key.public.verify(b"message", b"")


def test_keys_come_back_from_their_files(tmp_path: Path) -> None:
    key = PrivateKey.generate()
    key.save(tmp_path / "new" / "release.key")
    key.public.save(tmp_path / "new" / "release.pub")
    assert stat.S_IMODE((tmp_path / "new" / "release.key").stat().st_mode) == 0o600
    assert PrivateKey.open(tmp_path / "new" / "release.key").public == key.public
    assert PublicKey.open(tmp_path / "new" / "release.pub") == key.public
    assert PublicKey.from_hex(key.public.hex) == key.public
    assert len(key.public.fingerprint) == 16


def test_a_private_key_never_shows_itself() -> None:
    key = PrivateKey.generate()
    assert key._key.private_bytes_raw().hex() not in f"{key!r}{vars(key)!r}"


def test_files_are_never_overwritten(tmp_path: Path) -> None:
    key = PrivateKey.generate()
    key.save(tmp_path / "a.key")
    with pytest.raises(KeyFileError, match="not overwritten"):
        PrivateKey.generate().save(tmp_path / "a.key")
    assert PrivateKey.open(tmp_path / "a.key").public == key.public


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    PrivateKey.generate().save(tmp_path / "a.key")
    (tmp_path / "a.key").chmod(mode)
    with pytest.raises(KeyFileError, match="chmod 600"):
        PrivateKey.open(tmp_path / "a.key")


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"nonsense", b"fedtailor-ed25519-public:zz", b"fedtailor-ed25519-public:00", b"x" * 2000]
)
def test_malformed_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pub").write_bytes(content)
    with pytest.raises(KeyFileError):
        PublicKey.open(tmp_path / "a.pub")
    with pytest.raises(KeyFileError):
        PrivateKey.open(tmp_path / "a.pub")


def test_the_two_kinds_of_file_are_not_mixed_up(tmp_path: Path) -> None:
    key = PrivateKey.generate()
    key.save(tmp_path / "a.key")
    key.public.save(tmp_path / "a.pub")
    with pytest.raises(KeyFileError, match="mix up"):
        PublicKey.open(tmp_path / "a.key")
    with pytest.raises(KeyFileError, match="mix up"):
        PrivateKey.open(tmp_path / "a.pub")
    with pytest.raises(KeyFileError):
        PublicKey.open(tmp_path / "absent")


@pytest.mark.parametrize("text", ["", "00", "zz" * 32, "00" * 33])
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(KeyFileError):
        PublicKey.from_hex(text)


def is_small_order(y: int) -> bool:
    """Say whether eight times the point with this y coordinate is the neutral element (Edwards curve arithmetic of RFC 8032)."""
    d = -121665 * pow(121666, -1, FIELD_PRIME) % FIELD_PRIME
    square = (y * y - 1) * pow(d * y * y + 1, -1, FIELD_PRIME) % FIELD_PRIME
    for _ in range(3):  # doubling needs x squared alone: y' = (y^2 + x^2) / (1 - d x^2 y^2), and x'^2 follows from the curve
        y = (y * y + square) * pow(1 - d * square * y * y, -1, FIELD_PRIME) % FIELD_PRIME
        square = (y * y - 1) * pow(d * y * y + 1, -1, FIELD_PRIME) % FIELD_PRIME
    return y == 1


def test_the_list_of_weak_points_holds_weak_points() -> None:
    assert all(is_small_order(y) for y in SMALL_ORDER_Y)
    assert not is_small_order(4 * pow(5, -1, FIELD_PRIME) % FIELD_PRIME)  # the base point


@pytest.mark.parametrize("y", sorted(SMALL_ORDER_Y))
@pytest.mark.parametrize("sign", [0, 1])
def test_weak_keys_are_refused(y: int, sign: int) -> None:
    with pytest.raises(KeyFileError, match="weak"):
        PublicKey((y | sign << 255).to_bytes(32, "little"))


@pytest.mark.parametrize("y", [FIELD_PRIME, FIELD_PRIME + 1, FIELD_PRIME + 18])
def test_keys_with_a_second_spelling_are_refused(y: int) -> None:
    with pytest.raises(KeyFileError, match="canonical"):
        PublicKey(y.to_bytes(32, "little"))
